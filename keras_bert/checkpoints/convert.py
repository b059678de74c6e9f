"""Runs `keras_bert.programs.convert`: python -m keras_bert.checkpoints.convert SRC DST."""

if __name__ == "__main__":
    from keras_bert.programs.start import start

    start("keras_bert.programs.convert")
