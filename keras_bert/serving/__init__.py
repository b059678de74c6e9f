"""Served models: a model directory in, a SavedModel that takes text out, and a small server."""
