"""Runs `keras_bert.programs.squad`, which fine-tunes BERT to answer questions."""

from keras_bert.programs.command import start

if __name__ == "__main__":
    start("keras_bert.programs.squad")
