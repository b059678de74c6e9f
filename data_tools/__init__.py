"""Prepares data offline. A text passes these files to become a dataset, in this order.

corpus     finds the files and yields documents of sentences, with `lines` (decompressed, odd input
           counted), `formats` and `sentences`
build_vocab
           counts words, learns or extends a vocabulary
create_pretraining_data
           plan -> spill -> shards -> manifest; `settings` has its settings
spill      input files -> temporary files, by the hash of each document
shards     tokens -> examples (`pairs`) -> rows -> masked -> records (`tfrecords`)
jobs       runs spill and shards, which are pure functions, in local processes or on any executor
"""
