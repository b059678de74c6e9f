"""Runs `keras_bert.programs.ner`, which fine-tunes BERT to find named entities."""

from keras_bert.programs.command import start

if __name__ == "__main__":
    start("keras_bert.programs.ner")
