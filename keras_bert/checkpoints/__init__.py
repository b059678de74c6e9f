"""Opens, writes and converts checkpoints.

A path becomes a model through these files, in this order:

    open_checkpoint         finds the format of a path; opens the checkpoints of a running training
    model_directory         Hugging Face directories, in and out: config.json
    tokenizer_files         their vocabulary, tokenizer settings and added tokens
    safetensors_file        their weights
    sentence_transformers   their pooling, Dense modules and prompts
    google, keras_hub       TF1 checkpoints of Google's code and KerasHub presets, in
    checkpoint              the open checkpoint: config, vocabulary, settings; weights on disk
    weights                 loads the weights into a network
    conversion              writes any checkpoint as a Hugging Face directory, with changes
    vocab_change            adds and removes tokens
"""
