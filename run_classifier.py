"""Fine-tunes BERT to classify texts; the program is in `keras_bert.programs.classify`."""

from keras_bert.programs.classify import PROGRAM
from keras_bert.programs.program import run

if __name__ == "__main__":
    run(PROGRAM)
