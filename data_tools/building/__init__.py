"""Building a dataset: a corpus in, shards and their manifest out, here or on Apache Beam."""
