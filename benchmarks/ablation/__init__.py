"""Runs the study of benchmarks/ablation.py: its plan, units, programs, results and report.

plan.py           arms, tasks, settings and the budget
*.toml            recipes of single arms
units.py          the units of work, their settings and their estimated time
results.py        one JSON file per arm with the results of its finished units
study.py          computes the missing units
programs.py       runs the programs of keras_bert at low priority
corpus.py         corpus, vocabulary, records and the split of the SQuAD file
pretraining.py    pre-trains an arm
fine_tuning.py    fine-tunes an arm on a task
features.py       extracts the features of an arm, and trains taggers on them
tagger.py         the program that trains a tagger
claims.py         compares the paper's claims with the results
report.py         the tables, in Markdown
plots.py          the plots
reference.py      published figures
"""

import sys

from workers import ROOT

sys.path.insert(0, str(ROOT))  # For keras_bert, which may be installed from another checkout.
