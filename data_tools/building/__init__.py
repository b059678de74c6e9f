"""Builds a dataset from a corpus, on this machine or on Apache Beam."""
