"""Pre-trains BERT on records: masked tokens, next sentences, or next tokens.

recipe.py      flags, TOML -> phases
settings.py    the settings of a phase
records.py     record_files.py (files, manifest) -> format, shape -> parsed records
inputs.py      settings -> checked records, vocabulary, config, checkpoint, tokenizer settings
batches.py     records -> batches, a function of (seed, step); masking.py draws dynamic masks
objective.py   batch -> losses and accuracies
run.py         phases -> runs -> model/, results.json with the unigram baseline
dry_run.py     phases -> estimate of parameters, operations and memory
"""
