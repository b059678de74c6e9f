# make demo   the main job on a corpus every Python carries, in under five minutes
# make test   every test        make lint   ruff, format and rules
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: setup demo test lint format clean

setup: $(READY)

# --without-pip: Debian's python3 has no ensurepip; its own pip fills the environment instead.
$(READY): requirements.lock setup.py setup.cfg
	$(PYTHON) -m venv --without-pip .venv
	$(PYTHON) -m pip --python $(BIN)/python install --quiet --require-hashes -r requirements.lock
	$(PYTHON) -m pip --python $(BIN)/python install --quiet --no-deps --no-build-isolation --use-pep517 -e .
	touch $(READY)

demo: $(READY)
	$(BIN)/python run_demo.py --output_dir=demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist=loadfile

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv demo build *.egg-info
