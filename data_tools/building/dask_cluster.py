"""Connects Beam's DaskRunner to the scheduler of a Dask cluster.

The runner translates a pipeline to `dask.bag`. If a worker dies, Dask repeats its work on another
worker.
"""

import contextlib
import importlib.util
import logging as std_logging
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from absl import logging
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from keras_bert.common.errors import InputError

if TYPE_CHECKING:
    from apache_beam.runners.dask.dask_runner import DaskOptions
    from distributed import Client

RUNNER = "apache_beam.runners.dask.dask_runner.DaskRunner"
_TIMEOUT_SECONDS = 10
_SECONDS_BETWEEN_LINES = 10
# Beam's default puts 128 files in one partition, which one worker reads. The number of tasks that
# the scheduler creates to group the documents grows faster than the number of partitions.
_MAX_PARTITIONS = 500


def is_dask(runner: str) -> bool:
    """Returns whether a value of --runner names the DaskRunner."""
    return runner.lower() in ("dask", "daskrunner", RUNNER.lower())


def with_defaults(options: Sequence[str]) -> list[str]:
    """Adds defaults of this program for options of the DaskRunner that `options` does not set.

    Raises:
        InputError: if Dask is not installed.
    """
    if importlib.util.find_spec("distributed") is None:
        raise InputError(
            "--runner=DaskRunner: Dask is not installed; expected the extra dask: "
            "pip install 'keras-bert-pipeline[dask]'"
        )
    defaults = [f"--dask_connection_timeout={_TIMEOUT_SECONDS}"]
    # These options exclude each other; argparse also accepts abbreviations of their names.
    if not any(option.startswith(("--dask_np", "--dask_pa")) for option in options):
        defaults.append(f"--dask_npartitions={_MAX_PARTITIONS}")
    return [*defaults, *options]  # If an option is given twice, the later one applies.


def check_cluster(options: PipelineOptions) -> None:
    """Checks that the scheduler can be reached and has workers.

    Raises:
        InputError: if the scheduler cannot be reached or has no workers, or if the options name no
            scheduler.
    """
    with _connect(options) as client:
        timeout = _dask_options(options).timeout
        try:
            client.wait_for_workers(1, timeout=timeout)
        except TimeoutError:
            raise InputError(
                f"{_scheduler(options)}: the scheduler has no workers after {timeout} s; start "
                "workers with `dask worker ADDRESS`"
            ) from None
        logging.info("%s: %s", _scheduler(options), _count_of(len(_workers(client))))


@contextlib.contextmanager
def watched(options: PipelineOptions) -> Iterator[None]:
    """Logs the number of workers every ten seconds during the block, which runs a pipeline.

    Does nothing if `options` select another runner than Dask.
    """
    if options.view_as(StandardOptions).runner != RUNNER:
        yield
        return
    finished = threading.Event()

    def watch(client: "Client") -> None:
        while not finished.wait(_SECONDS_BETWEEN_LINES):
            with contextlib.suppress(Exception):  # `check_finished` reports a lost connection.
                if num_workers := len(_workers(client)):
                    logging.info("Dask: %s", _count_of(num_workers))
                else:
                    logging.warning("Dask: no workers; waiting until some connect")

    with _connect(options) as client:
        watcher = threading.Thread(target=watch, args=[client], daemon=True)
        watcher.start()
        try:
            yield
        finally:
            finished.set()
            watcher.join(_TIMEOUT_SECONDS)


def check_finished(pipeline: beam.Pipeline) -> None:
    """Checks that a pipeline was run completely, if it ran on Dask.

    The DaskRunner itself reports success if it waits for the pipeline and the scheduler ends.

    Raises:
        InputError: if the connection to the scheduler was lost.
    """
    if type(pipeline.result).__name__ == "DaskRunnerResult" and any(
        future.status != "finished" for future in pipeline.result.futures
    ):
        raise InputError(
            "--runner=DaskRunner: the connection to the scheduler was lost; start the scheduler "
            "and the workers, then run the same command again to resume"
        )


def disconnect(pipeline: beam.Pipeline) -> None:
    """Closes the connection of a pipeline that ran on Dask, so that Dask drops unfinished work."""
    result = getattr(pipeline, "result", None)  # None if the pipeline was not started
    if type(result).__name__ == "DaskRunnerResult":
        result.client.close()


def is_failure(error: Exception) -> bool:
    """Returns whether an error, or a cause of it, was raised by Dask itself.

    Examples are that too many workers died, or that the scheduler was lost, which raises an OSError
    with a cause in Dask.
    """
    cause: BaseException | None = error
    while cause is not None and not type(cause).__module__.startswith("distributed."):
        cause = cause.__cause__
    return cause is not None


def _dask_options(options: PipelineOptions) -> "DaskOptions":
    from apache_beam.runners.dask.dask_runner import DaskOptions

    return options.view_as(DaskOptions)


def _scheduler(options: PipelineOptions) -> str:
    """Returns the option that names the scheduler, with its value."""
    dask = _dask_options(options)
    if dask.scheduler_file:
        return f"--dask_scheduler_file={dask.scheduler_file}"
    return f"--dask_client_address={dask.address}"


def _connect(options: PipelineOptions) -> "Client":
    """Connects to the scheduler; raises an `InputError` if that fails."""
    from distributed import Client

    # Dask logs a lost connection with tracebacks; `check_finished` reports it in one line.
    # Dask sets the levels of its loggers one by one.
    for name in [*std_logging.root.manager.loggerDict]:
        if name.split(".")[0] in ("distributed", "asyncio", "tornado"):
            std_logging.getLogger(name).setLevel(std_logging.CRITICAL + 1)
    dask = _dask_options(options)
    if not dask.address and not dask.scheduler_file:
        raise InputError(
            "--runner=DaskRunner: no scheduler; expected --dask_client_address=tcp://HOST:8786 or "
            "--dask_scheduler_file=FILE after --"
        )
    try:
        return Client(
            dask.address,
            scheduler_file=dask.scheduler_file,
            timeout=dask.timeout,
            set_as_default=False,
        )
    except (OSError, ValueError) as error:
        raise InputError(
            f"{_scheduler(options)}: no scheduler answers within {dask.timeout} s ({error}); start "
            "one with `dask scheduler`, or correct the address"
        ) from None


def _workers(client: "Client") -> dict[str, Any]:
    return client.scheduler_info(n_workers=-1)["workers"]


def _count_of(num_workers: int) -> str:
    return f"{num_workers} worker" if num_workers == 1 else f"{num_workers} workers"
