# make demo   the main job on a corpus every Python carries, in under five minutes
# make test   the fast tests    make slow   those of servers, whole programs, other backends
# make lint   ruff, format and rules
# make beam   .beam, an environment with Apache Beam for the tests of --runner
# make peers  .peers, one with the libraries that open what we write, and that we are measured against
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
BEAM := .beam/ready
PEERS := .peers/ready

.PHONY: setup beam peers demo test slow lint format clean

setup: $(READY)

# --without-pip: Debian's python3 has no ensurepip; its own pip fills the environment instead.
$(READY): requirements.lock setup.py setup.cfg
	$(PYTHON) -m venv --without-pip .venv
	$(PYTHON) -m pip --python $(BIN)/python install --quiet --require-hashes -r requirements.lock
	$(PYTHON) -m pip --python $(BIN)/python install --quiet --no-deps --no-build-isolation --use-pep517 -e .
	touch $(READY)

# Apart from .venv: Apache Beam wants an older protobuf.
beam: $(BEAM)

$(BEAM): requirements-beam.lock setup.py setup.cfg
	$(PYTHON) -m venv --without-pip .beam
	$(PYTHON) -m pip --python .beam/bin/python install --quiet --require-hashes -r requirements-beam.lock
	$(PYTHON) -m pip --python .beam/bin/python install --quiet --no-deps --no-build-isolation --use-pep517 -e .
	touch $(BEAM)

peers: $(PEERS)

$(PEERS): benchmarks/make_peers.sh benchmarks/peers.txt benchmarks/peers_no_deps.txt
	PYTHON=$(PYTHON) benchmarks/make_peers.sh
	touch $(PEERS)

demo: $(READY)
	$(BIN)/python run_demo.py --output_dir=demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist=loadfile -m 'not slow'

slow: $(READY)
	$(BIN)/python -m pytest -n 2 --dist=loadfile -m slow

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .beam .peers demo build *.egg-info
