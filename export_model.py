"""Exports a model for serving; the program is in `keras_bert.programs.export`."""

from keras_bert.programs.export import PROGRAM
from keras_bert.programs.program import run

if __name__ == "__main__":
    run(PROGRAM)
