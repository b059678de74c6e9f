"""Serves models: SavedModels that take text, other formats, and a small server."""
