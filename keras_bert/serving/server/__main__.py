"""Serves exported models over HTTP (`keras_bert.programs.serve`).

python -m keras_bert.serving.server --export_dir=DIR --port=8501
"""

import sys

from keras_bert.programs.program import run
from keras_bert.programs.serve import PROGRAM

if __name__ == "__main__":
    sys.argv[0] = "keras_bert.serving.server"
    run(PROGRAM)
