"""Runs `keras_bert.programs.serve`, which serves exported models over HTTP."""

import sys

from keras_bert.programs.start import start

if __name__ == "__main__":
    sys.argv[0] = "keras_bert.serving.server"
    start("keras_bert.programs.serve")
