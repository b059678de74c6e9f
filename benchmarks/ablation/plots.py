"""Draws the plot of the study: the scores of the models of one size, with a row for each task."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from ablation.report import CONSTANT, Model, scores_of
from ablation.run import Results

# The models and tasks in words, for readers who do not know their names.
_MODELS = {
    "mini-none": "not pre-trained",
    "mini-ltr": "pre-trained on the next word",
    "mini-mlm": "pre-trained on masked words",
    "mini-mlm_nsp": "pre-trained on masked words and next sentences",
}
_TASKS = {
    "WNUT-17": "Which words are names?",
    "STS-B": "How similar are two sentences?",
    "CoLA": "Is the sentence grammatical?",
    "MRPC": "Do both sentences mean the same?",
    "SQuAD": "Which words answer the question?",
    "SST-2": "Is the review positive?",
    "RTE": "Does the second sentence follow?",
}
_COLORS = ("#757575", "#e07b00", "#2a9d5c", "#3f51b5")
_LOOK = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.grid.axis": "x",
    "grid.color": "#e6e6e6",
    "axes.edgecolor": "#999999",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 11,
}


def draw(results: Results, folder: Path) -> Path:
    """Writes pretraining_scores.png to a folder, and returns its path."""
    import matplotlib  # Imported late, since it is an optional dependency.
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pretraining_scores.png"
    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=(8, 6), layout="constrained")
        axes = figure.add_subplot()
        for index, (arm, name) in enumerate(_MODELS.items()):
            rows, means, spreads = [], [], []
            for row, task in enumerate(_TASKS):
                if scores := scores_of(Model(arm), task, results):
                    rows.append(row + 0.18 * (index - 1.5))
                    means.append(mean(scores))
                    spreads.append(_spread(scores))
            look = {"fmt": "o", "markersize": 6, "capsize": 3, "color": _COLORS[index]}
            axes.errorbar(means, rows, xerr=spreads, label=name, **look)
        constants = {task: score for (task, metric), score in CONSTANT.items() if metric != "f1"}
        for row, task in enumerate(_TASKS):
            if score := constants.get(task):
                label = "always the most frequent answer" if task == "SST-2" else None
                axes.plot([score] * 2, [row - 0.4, row + 0.4], ":", color="#444444", label=label)
        axes.set_yticks(range(len(_TASKS)), [f"{text}\n({task})" for task, text in _TASKS.items()])
        axes.tick_params("y", length=0)
        axes.set_ylim(len(_TASKS) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_xlabel("score (100 is the best)")
        figure.legend(loc="outside upper left", frameon=False)
        figure.savefig(path, dpi=110)
    return path


def _spread(scores: Sequence[float]) -> float:
    return stdev(scores) if len(scores) > 1 else 0.0
