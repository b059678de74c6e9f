"""Runs `keras_bert.programs.pretrain`, which pre-trains BERT."""

from keras_bert.programs.command import start

if __name__ == "__main__":
    start("keras_bert.programs.pretrain")
