"""Serves models: SavedModels that take text, ONNX and LiteRT files, and a small server."""
