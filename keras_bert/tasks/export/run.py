"""Exports trained models: a model directory, or all models of a run.

The task is the one that the model's heads are for. What a run was trained with (lengths, pairs,
threshold) is taken from its run.json and results.json, beside model/; a given setting overrides it.
"""

from pathlib import Path

from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json
from keras_bert.serving.saved_model import INFO
from keras_bert.serving.version_folders import check_version, find_versions, next_version
from keras_bert.tasks.export.settings import ExportSettings
from keras_bert.tasks.export.task_export import weights_checksum
from keras_bert.tasks.load import open_task
from keras_bert.tasks.loading import Source


def export(settings: ExportSettings) -> Path:
    """Exports a model.

    Args:
        settings: what and how.

    Returns:
        The folder of the version.

    Raises:
        InputError: a model or a setting that cannot be served, or a place that cannot be written.
    """
    export_dir = Path(settings.export_dir)
    check_version(export_dir)
    source = _open(Path(settings.model_dir))
    task = settings.task_of(source)
    settings.check_read(task)
    return open_task(task, source, settings.given(task, source)).export(
        export_dir, settings.format, compute_type=settings.compute_type, int8=settings.int8
    )


def export_run(output_dir: Path) -> list[Path]:
    """Exports what a run trained, each of several seeds' models, to export/ beside its model/.

    Args:
        output_dir: the run's folder.

    Returns:
        The newest version of each. It is a new one unless the newest there is has these weights.

    Raises:
        InputError: the run trained nothing, or as `export`.
    """
    models = sorted(output_dir.glob("seed-*/model")) or [output_dir / "model"]
    if not models[0].is_dir():
        raise InputError(f"{output_dir}: holds no model/; --export needs a run that trains one")
    return [_newest(model, model.parent / "export") for model in models]


def _newest(model: Path, folder: Path) -> Path:
    """Returns the version of a model's weights, and makes it if need be."""
    versions = find_versions(folder)
    if versions:
        newest = versions[max(versions)]
        try:
            checksum = read_json(newest / INFO).get("weights_sha256")
        except InputError:  # Not a whole export of ours.
            checksum = None
        if checksum is not None and checksum == weights_checksum(model):
            return newest
    return export(ExportSettings(str(model), str(folder / str(next_version(folder)))))


def _open(path: Path) -> Source:
    """Opens a model that can be served: it has a vocabulary and attends to both sides."""
    seeds = sorted(path.glob("seed-*/model"))
    if seeds and not (path / "model").exists():
        raise InputError(
            f"--model_dir={path}: holds a model of each of several seeds; expected one of them, "
            f"such as {seeds[0].parent}"
        )
    source = Source.open(path)
    checkpoint = source.checkpoint
    if checkpoint.vocab is None:
        raise InputError(f"{checkpoint.why_no_vocab}; an export tokenizes text itself")
    if checkpoint.config.is_decoder:
        raise InputError(
            f"{checkpoint.path}: is a left-to-right model (is_decoder), which is not served; "
            "expected one that attends to both sides"
        )
    return source
