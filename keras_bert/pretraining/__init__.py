"""Pre-trains BERT on records: masked tokens, next sentences, or next tokens.

recipe.py      flags, TOML -> phases
settings.py    the settings of a phase
records.py     record_files.py (files, manifest) -> format, shape -> parsed records -> batches, a
               function of (seed, step); masking.py draws dynamic masks
inputs.py      settings -> checked records, vocabulary, config, checkpoint, tokenizer settings
objective.py   batch -> losses and accuracies
run.py         phases -> runs -> model/, results.json with the unigram baseline; or phases ->
               estimate of parameters, operations and memory
"""
