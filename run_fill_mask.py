"""Fills the masks of sentences; the program is in `keras_bert.programs.fill_mask`."""

from keras_bert.programs.fill_mask import PROGRAM
from keras_bert.programs.program import run

if __name__ == "__main__":
    run(PROGRAM)
