"""Runs `keras_bert.programs.extract_features`, which writes BERT's hidden states for texts."""

from keras_bert.programs.command import start

if __name__ == "__main__":
    start("keras_bert.programs.extract_features")
