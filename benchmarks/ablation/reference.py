"""Figures that the report shows beside those of the study: published ones, and constant answers.

Scores are in points. The models of the paper and of Google were trained on the Wikipedia and
BooksCorpus, 3,300 M words, for 1,000,000 steps of 256 sequences; the scores of Google's small
models are those of the GLUE test server, with the best of several fine-tuning settings.
"""

from ablation.plan import Plan

# google/bert_uncased_L-{2,4,4}_H-{128,256,512}: {size: {task: score}}, GLUE test,
# MRPC in accuracy, STS-B in Spearman.
GOOGLE = {
    "tiny": {"CoLA": 0.0, "SST-2": 83.2, "MRPC": 71.1, "STS-B": 73.6, "RTE": 57.2},
    "mini": {"CoLA": 0.0, "SST-2": 85.9, "MRPC": 71.8, "STS-B": 73.3, "RTE": 57.9},
    "small": {"CoLA": 27.8, "SST-2": 89.7, "MRPC": 76.2, "STS-B": 77.0, "RTE": 61.8},
}

# The development scores of always giving the most frequent answer: {(task, metric): score}.
CONSTANT = {
    ("CoLA", "matthews_corrcoef"): 0.0,
    ("SST-2", "accuracy"): 50.9,  # 444 of 872
    ("MRPC", "accuracy"): 68.4,  # 279 of 408
    ("MRPC", "f1"): 81.2,
    ("RTE", "accuracy"): 52.7,  # 146 of 277
    ("WNUT-17", "f1"): 0.0,
}

# Devlin et al. 2019, Table 5, BERT-base, development sets: MRPC in accuracy, SQuAD v1.1 in F1.
TABLE_5 = {
    "mlm_nsp": {"MRPC": 86.7, "SST-2": 92.7, "SQuAD": 88.5},
    "mlm": {"MRPC": 86.5, "SST-2": 92.6, "SQuAD": 87.9},
    "ltr": {"MRPC": 77.5, "SST-2": 92.1, "SQuAD": 77.8},
}

# Table 6, development sets: layers/hidden size/heads, masked-LM perplexity, MRPC, SST-2.
TABLE_6 = (
    ("3/768/12", 5.84, 79.8, 88.4),
    ("6/768/3", 5.24, 82.2, 90.7),
    ("6/768/12", 4.68, 84.8, 91.3),
    ("12/768/12", 3.99, 86.7, 92.9),
    ("12/1024/16", 3.54, 86.9, 93.3),
    ("24/1024/16", 3.23, 87.8, 93.7),
)

# Table 7, CoNLL-2003, development F1 of BERT-base.
TABLE_7 = {
    "fine-tuning": 96.4,
    "last": 94.9,
    "second_to_last": 95.6,
    "sum_last_four": "95.9 (weighted)",
    "concat_last_four": 96.1,
}

_PAPER_STEPS, _PAPER_BATCH = 1_000_000, 256
# 90 % of the steps have 128 tokens, the rest 512.
_PAPER_TOKENS = _PAPER_STEPS * _PAPER_BATCH * (0.9 * 128 + 0.1 * 512)


def share_of_tokens(study: Plan) -> str:
    """Returns a sentence about how many tokens an arm is trained on, compared with the paper."""
    phases = study.phases_of(study.arms[0])
    ours = sum(phase.steps * phase.batch * phase.length for phase in phases)
    steps = " and ".join(
        f"{each.steps:,} steps of {each.batch} sequences of {each.length} tokens" for each in phases
    )
    return (
        f"{study.arms[0].name} was trained on {ours / 1e6:.1f} M tokens ({steps}), "
        f"{100 * ours / _PAPER_TOKENS:.3f} % of the {_PAPER_TOKENS / 1e9:.1f} billion of BERT "
        "(1,000,000 steps of 256 sequences, 90 % of them with 128 tokens and 10 % with 512)."
    )
