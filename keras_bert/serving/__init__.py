"""Writes models as SavedModels, ONNX files and LiteRT files, and serves SavedModels over HTTP."""
