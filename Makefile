# One virtual environment serves every target; it is made anew when what it holds changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PEERS := $(VENV)/peers
ARGS ?=
# `make bench BENCH=pipeline ARGS=--quick` runs one of them.
BENCH ?= transport pipeline rebatch loader startup large device

.PHONY: demo test lint bench soak clean

demo: $(READY)
	$(BIN)/mpwds demo $(ARGS)

# Tests mostly wait for processes to start: two at a time take half as long, a file's in one process.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(PEERS)
	for bench in $(BENCH); do $(BIN)/python tools/bench/$$bench.py $(ARGS) || exit 1; done

# `make soak ARGS="--minutes 1"`; then trainers that are killed at random moments, new ones each time.
soak: $(READY)
	$(BIN)/python tools/soak.py $(ARGS)
	MPWDS_FAULT_ROUNDS=20 MPWDS_FAULT_SEED=$$(date +%s) \
	    $(BIN)/python -m pytest --timeout 600 tests/loader/faults/test_trainer_ends.py -k a_signal_ends

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml tools/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "mpwds needs Python 3.10 or later: make PYTHON=/path/to/python3")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint tools/constraints.txt --editable '.[dev]'
	touch $(READY)

# Who is measured beside us. Where that cannot be installed, the benchmark says what it leaves out.
$(PEERS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint tools/constraints.txt --editable '.[bench]' \
		|| echo "spdl and grain cannot be installed here: measured without them"
	touch $(PEERS)
