"""Pre-trains BERT; the program is in `keras_bert.programs.pretrain`."""

from keras_bert.programs.pretrain import PROGRAM
from keras_bert.programs.program import run

if __name__ == "__main__":
    run(PROGRAM)
