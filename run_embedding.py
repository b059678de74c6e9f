"""Runs `keras_bert.programs.embed`, which trains BERT to embed texts."""

from keras_bert.programs.command import start

if __name__ == "__main__":
    start("keras_bert.programs.embed")
