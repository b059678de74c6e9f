"""Writes features of texts; the program is in `keras_bert.programs.extract_features`."""

from keras_bert.programs.extract_features import PROGRAM
from keras_bert.programs.program import run

if __name__ == "__main__":
    run(PROGRAM)
