"""Runs `keras_bert.programs.serve`, which serves exported models over HTTP."""

import sys

from keras_bert.programs.program import run
from keras_bert.programs.serve import PROGRAM

if __name__ == "__main__":
    sys.argv[0] = "keras_bert.serving.server"
    run(PROGRAM)
