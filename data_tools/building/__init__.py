"""Builds a dataset from a corpus. A document passes these files, in this order.

    build      finds an earlier build, and starts the steps
    executors  runs the jobs of a step: local processes, or any executor
    spill      reads the input files into temporary files, by the hash of each document
    build      makes the plan: the number of shards
    shards     makes the record file of a shard from the temporary files, with `data_tools.examples`
    build      moves the shards to the output folder, and writes manifest.json

A job is a pure function of its input, so any worker can run it, twice if necessary.
"""
