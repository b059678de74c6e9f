"""Runs pipelines on the runners of Apache Beam, which are given by name and options."""

import argparse
import contextlib
import io
import logging as std_logging
import re
from collections.abc import Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import create_runner

from data_tools.building import dask_cluster
from keras_bert.common.errors import InputError


def parse_options(runner: str, options: Sequence[str]) -> PipelineOptions:
    """Parses the options of a runner; for a DaskRunner, checks that its cluster can be reached.

    Raises:
        InputError: if the runner or an option does not exist, or the cluster cannot be reached.
    """
    is_dask = dask_cluster.is_dask(runner)
    if is_dask:
        runner, options = dask_cluster.RUNNER, dask_cluster.with_defaults(options)
    if runner.lower() in ("direct", "directrunner"):
        # By default, Beam downloads Prism for this runner, which does not support
        # --direct_running_mode. --allow_unsafe_triggers prevents that and has no other effect on a
        # pipeline without triggers. --default_sdk_harness_log_level silences the workers on stderr.
        # If an option is given twice, the later one applies.
        options = ["--allow_unsafe_triggers", "--default_sdk_harness_log_level=ERROR", *options]
    try:
        created = create_runner(runner)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"--runner={runner}: {error}") from None
    stderr = io.StringIO()
    parsers: list[argparse.ArgumentParser] = []
    try:
        with contextlib.redirect_stderr(stderr):
            parsed = PipelineOptions([*options, f"--runner={runner}"])
            # Beam parses the options in this call, and would only log a warning for unknown ones.
            std_logging.disable(std_logging.WARNING)
            parsed.get_all_options(add_extra_args_fn=parsers.append)
            _, unknown = parsers[0].parse_known_args(options)
    except SystemExit:
        line = stderr.getvalue().strip().rsplit("\n", 1)[-1]
        raise InputError(f"options after --: {line.split('error: ', 1)[-1]}") from None
    finally:
        std_logging.disable(std_logging.NOTSET)
    # A job server (Flink, Spark) may have additional options, which are requested later.
    if unknown and not isinstance(created, PortableRunner):
        name = runner.rpartition(".")[2]
        raise InputError(f"options after --: {name} has no option {unknown[0]!r}")
    if is_dask:
        dask_cluster.check_cluster(parsed)
    return parsed


@contextlib.contextmanager
def running(options: PipelineOptions) -> Iterator[beam.Pipeline]:
    """Provides a pipeline that runs at the end of the block.

    Raises:
        InputError: if the input is invalid or the runner fails.
    """
    try:
        pipeline = beam.Pipeline(options=options)
    except ValueError as error:  # for example without --project, which Dataflow requires
        raise InputError(f"options after --: {error}") from None
    try:
        with dask_cluster.watched(options), pipeline:
            yield pipeline
        dask_cluster.check_finished(pipeline)
    except Exception as error:
        # Beam passes on a worker's exception as text.
        messages = re.findall(r"InputError: (.*)", str(error))
        if isinstance(error, InputError):
            messages = [str(error)]
        if messages:
            raise InputError(re.sub(r" \[while running .*", "", messages[-1])) from None
        if isinstance(error, RuntimeError) and "Traceback" not in str(error):
            raise InputError(f"Apache Beam failed: {error}") from None  # raised by the runner
        if dask_cluster.is_failure(error):
            raise InputError(
                f"Dask failed: {error}; run the same command again to resume"
            ) from None
        raise
    finally:
        dask_cluster.disconnect(pipeline)
