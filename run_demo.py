"""Runs `keras_bert.programs.demo`, the demo."""

from keras_bert.programs.start import start

if __name__ == "__main__":
    start("keras_bert.programs.demo")
