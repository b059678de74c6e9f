"""Fine-tunes BERT to answer questions; the program is in `keras_bert.programs.squad`."""

from keras_bert.programs.program import run
from keras_bert.programs.squad import PROGRAM

if __name__ == "__main__":
    run(PROGRAM)
