"""Export: a trained model in; a folder that serves it out."""

from keras_bert.tasks.export.run import export, export_run
from keras_bert.tasks.export.settings import ExportSettings

__all__ = ["ExportSettings", "export", "export_run"]
