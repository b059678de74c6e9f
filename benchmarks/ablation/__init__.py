"""Runs the study of benchmarks/ablation.py.

plan.py    arms, tasks and settings, and the units of work that they consist of
run.py     computes units with the programs of keras_bert, and stores their results
tagger.py  the program that trains a tagger on features
report.py  the tables and plots, and the paper's claims compared with the results
half.toml  the recipe of the arms with half of the steps
"""

import sys

from workers import ROOT

sys.path.insert(0, str(ROOT))  # For keras_bert, which may be installed from another checkout.
