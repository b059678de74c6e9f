# make demo   the main job on a corpus every Python carries, in two to five minutes
# make test   the fast tests    make slow   those that train, export, or start servers and programs
# make lint   ruff, format and rules
# make docs   the documentation site, in build/site; a broken link or a warning is an error
# make peers  .peers, one with the libraries that open what we write, and that we are measured against
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
PEERS := .peers/ready
DOCS := .docs/ready

.PHONY: setup peers docs demo test slow lint format clean

setup: $(READY)

# --without-pip: Debian's python3 has no ensurepip; its own pip fills the environment instead.
$(READY): requirements/dev.lock pyproject.toml setup.py setup.cfg
	$(PYTHON) -m venv --without-pip .venv
	$(PYTHON) -m pip --python $(BIN)/python install --quiet --require-hashes -r requirements/dev.lock
	$(PYTHON) -m pip --python $(BIN)/python install --quiet --no-deps --no-build-isolation --use-pep517 -e .
	touch $(READY)

peers: $(PEERS)

$(PEERS): benchmarks/make_peers.sh benchmarks/peers.txt benchmarks/peers_no_deps.txt
	PYTHON=$(PYTHON) benchmarks/make_peers.sh
	touch $(PEERS)

$(DOCS): requirements/docs.lock
	$(PYTHON) -m venv --without-pip .docs
	$(PYTHON) -m pip --python .docs/bin/python install --quiet --require-hashes -r requirements/docs.lock
	touch $(DOCS)

# The programs' flags are read from the programs themselves, which .docs cannot import.
docs: $(READY) $(DOCS)
	$(BIN)/python -m docs.generate_flags
	NO_MKDOCS_2_WARNING=1 .docs/bin/python -m mkdocs build --strict --clean

demo: $(READY)
	$(BIN)/keras-bert demo --output_dir=demo

TEST := $(BIN)/python -m pytest -n 2 --dist=loadfile
test: $(READY)
	$(TEST) -m 'not slow'

# In parts, because XLA keeps each compiled program until the process ends: the two workers of a
# single run would need more than 24 GB. Files with long tests first, so that no worker waits for
# the other one at the end.
FILES = $(sort $(shell find tests -name "test_*.py"))
LARGE := tests/tasks/classification/% tests/tasks/embedding/%
LONG := $(addprefix tests/,benchmarks/% examples/% test_on_jax.py tasks/test_fit% \
	$(addprefix training/test_,cluster_files.py jax_step.py multi_worker.py step.py) \
	$(addprefix programs/test_,stop_and_resume.py adapt.py demo.py run_embedding.py) \
	checkpoints/test_sentence_transformers.py data_tools/test_build.py server/test_program.py \
	export/test_tensorflow_serving.py models/test_networks.py)
slow_tests = $(TEST) -m slow --no-loadscope-reorder $(filter $(LONG),$(1)) $(filter-out $(LONG),$(1))
slow: $(READY)
	$(call slow_tests,$(filter $(LARGE),$(FILES)))
	$(call slow_tests,$(filter-out $(LARGE),$(filter tests/tasks/%,$(FILES))))
	$(call slow_tests,$(filter tests/programs/%,$(FILES)))
	$(call slow_tests,$(filter-out tests/tasks/% tests/programs/%,$(FILES)))

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .peers .docs demo build *.egg-info
