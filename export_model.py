"""Runs `keras_bert.programs.export`, which exports a model for serving."""

from keras_bert.programs.command import start

if __name__ == "__main__":
    start("keras_bert.programs.export")
