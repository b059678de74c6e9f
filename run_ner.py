"""Fine-tunes BERT to find named entities; the program is in `keras_bert.programs.ner`."""

from keras_bert.programs.ner import PROGRAM
from keras_bert.programs.program import run

if __name__ == "__main__":
    run(PROGRAM)
