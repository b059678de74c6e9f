"""Runs `keras_bert.programs.demo`, which pre-trains a small BERT and fills masks with it."""

from keras_bert.programs.start import start

if __name__ == "__main__":
    start("keras_bert.programs.demo")
