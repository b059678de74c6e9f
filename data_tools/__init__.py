"""Prepares data offline. A text passes these files to become a dataset, in this order.

corpus     finds the files and yields documents of sentences, with `formats` (or `markup`),
`lines` (decompressed, odd input counted) and `sentences`
vocabulary counts words, learns or extends a vocabulary; the program is `build_vocab`
build      makes the plan and the manifest; `settings` has the flags of `create_pretraining_data`
jobs       runs the jobs of a build: local processes, or any executor; a job is a pure function
spill      reads the input files into temporary files, by the hash of each document
shards     tokens -> examples (`pairs`) -> `rows` -> masked -> records (`tfrecords`)
"""
