"""Exports trained models for serving."""

from keras_bert.tasks.export.run import export, export_run
from keras_bert.tasks.export.settings import ExportSettings

__all__ = ["ExportSettings", "export", "export_run"]
