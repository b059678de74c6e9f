"""Plots the learning curves of one or more runs as a picture and an HTML page.

    keras-bert plot out/base out/large --output=curves.png

The arguments are folders of runs, finished or not. curves.png shows loss, scores and throughput
over the steps; curves.html has the picture and a table of the final metrics. With --average_seeds,
runs that differ only in their seed, such as out/mlm-seed-0 and out/mlm-seed-1, are drawn as their
mean with the standard deviation.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from absl.flags import FlagValues

from keras_bert.common.errors import InputError
from keras_bert.common.files import write_bytes
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string(
        "output",
        "curves.png",
        "PNG file to write. The HTML page is written next to it, with the suffix .html.",
    )
    define.boolean(
        "average_seeds",
        False,
        "Draw runs whose folder names differ only in the number after 'seed' as one curve, the "
        "mean with the standard deviation.",
    )


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Plots the metrics of the given run folders in an image and an HTML page."""
    if not arguments:
        raise InputError("expected the folders of one or more runs; see --help")
    output = Path(flags.output)
    if output.suffix != ".png":
        raise InputError(f"--output={output}: expected a name that ends in .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(
            "matplotlib is not installed; plots need it: pip install 'keras-bert-pipeline[plot]'"
        )
    from keras_bert.training.curves import read_runs
    from keras_bert.training.plot import draw, make_page
    from keras_bert.training.seeds import average_seeds

    runs = read_runs(arguments)
    if flags.average_seeds:
        runs = average_seeds(runs)
    picture = draw(runs)
    write_bytes(output, picture)
    page = output.with_suffix(".html")
    write_bytes(page, make_page(runs, picture).encode())
    print(f"{output}: learning curves of {', '.join(run.name for run in runs)}")
    print(f"{page}: learning curves and a table of the final metrics")


PROGRAM = Program("plot", __doc__, define_flags, main)
