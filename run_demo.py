"""Runs the demo; the program is in `keras_bert.programs.demo`."""

from keras_bert.programs.demo import PROGRAM
from keras_bert.programs.program import run

if __name__ == "__main__":
    run(PROGRAM)
