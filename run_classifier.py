"""Runs `keras_bert.programs.classify`, which fine-tunes BERT to classify texts."""

from keras_bert.programs.command import start

if __name__ == "__main__":
    start("keras_bert.programs.classify")
