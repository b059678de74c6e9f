"""Exports a model directory, or all models of a run."""

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
    """Exports a model, and returns the version folder.

    Raises InputError if the model or a setting cannot be served, or the folder cannot be written.
    """
    export_dir = Path(settings.export_dir)
    check_version(export_dir)
    source = _open(Path(settings.model_dir))
    task = settings.task_of(source)
    settings.check_unused(task)
    return open_task(task, source, settings.given(task, source)).export(
        export_dir,
        settings.format,
        compute_type=settings.compute_type,
        int8=settings.int8,
        engines=settings.engines or (),
    )


def export_run(output_dir: Path) -> list[Path]:
    """Exports the model/ of a run, or of each seed of the run, to an export/ in the same folder.

    Returns the folder of the newest version of each model. A new version is written only if the
    model's weights differ from those of the newest version.
    """
    models = sorted(output_dir.glob("seed-*/model")) or [output_dir / "model"]
    if not models[0].is_dir():
        raise InputError(
            f"{output_dir}: contains no model/; expected the folder of a run that trained a model"
        )
    return [_newest(model, model.parent / "export") for model in models]


def _newest(model: Path, folder: Path) -> Path:
    """Returns the newest version in `folder`; exports a new one if the model's weights differ."""
    versions = find_versions(folder)
    if versions:
        newest = versions[max(versions)]
        try:
            checksum = read_json(newest / INFO).get("weights_sha256")
        except InputError:  # The version is not an export of this library.
            checksum = None
        if checksum is not None and checksum == weights_checksum(model):
            return newest
    return export(ExportSettings(str(model), str(folder / str(next_version(folder)))))


def _open(path: Path) -> Source:
    """Opens a model and checks that it has a vocabulary and bidirectional attention."""
    source = Source.open(path)
    checkpoint = source.checkpoint
    if checkpoint.vocab is None:
        raise InputError(
            f"{checkpoint.why_no_vocab}; a vocabulary is required because an export tokenizes text"
        )
    if checkpoint.config.is_decoder:
        raise InputError(
            f"{checkpoint.path}: is a left-to-right model (is_decoder), which cannot be "
            "exported; expected a bidirectional model"
        )
    return source
