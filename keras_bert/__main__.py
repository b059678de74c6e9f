"""Runs `python -m keras_bert` as the command `keras-bert`."""

from keras_bert.programs.command import main

if __name__ == "__main__":
    main()
