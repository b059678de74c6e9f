#!/bin/sh
# Makes .peers, the environment of the programs that the product is measured against and that its
# golden files are made with. Nothing in the product needs it. About 3 GB.
#
#   benchmarks/make_peers.sh
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
"$python" -m venv --without-pip .peers
install="$python -m pip --python .peers/bin/python install --quiet"
$install -r benchmarks/peers.txt
$install --no-deps -r benchmarks/peers_no_deps.txt
