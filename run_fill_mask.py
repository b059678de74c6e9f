"""Runs `keras_bert.programs.fill_mask`, which fills the masks of sentences."""

from keras_bert.programs.command import start

if __name__ == "__main__":
    start("keras_bert.programs.fill_mask")
