"""Writes models as SavedModels and ONNX files, and serves SavedModels over HTTP."""
