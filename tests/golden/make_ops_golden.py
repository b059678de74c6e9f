r"""Writes ops_2_18.binpb.gz: the ops of the oldest supported TensorFlow Serving.

    python3.11 -m venv --without-pip old
    python3.11 -m pip --python old/bin/python install --no-deps \
        tensorflow-cpu==2.18.1 tensorflow-text==2.18.1
    python tests/golden/make_ops_golden.py old/lib/python3.11/site-packages

The input is the packages of TensorFlow 2.18. The output is an OpList from its C++ library: all of
its ops, and those of the three libraries of tensorflow-text that the tokenizer uses.
"""

import gzip
import runpy
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent


def main(site_packages: str) -> None:
    """Writes the golden file."""
    c_api = runpy.run_path(str(TESTS / "export" / "c_api.py"))
    ops = c_api["TensorFlow"](Path(site_packages)).op_list()
    (TESTS / "golden" / "ops_2_18.binpb.gz").write_bytes(gzip.compress(ops, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
