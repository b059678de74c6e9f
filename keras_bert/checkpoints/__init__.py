"""Opens, writes and converts checkpoints.

A path becomes a model through these files, in this order:

    hub                     downloads the model of a name on the Hugging Face Hub
    open                    finds the format of a path; opens checkpoints of a running training, TF1
                            checkpoints of Google's code and KerasHub presets
    hugging_face            model directories, in and out: config.json, the weights
    tokenizer_files         their vocabulary, tokenizer settings and added tokens
    sentence_transformers   their pooling, Dense modules and prompts
    checkpoint              the open checkpoint: config, vocabulary, task; weights on disk
    earlier_run             the settings and results of the run that wrote it
    weights                 loads the weights into a network
    convert                 writes any checkpoint as a Hugging Face directory, with changes
"""
