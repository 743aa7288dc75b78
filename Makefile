# One virtual environment serves every target. A target installs what it needs when it is first made.
SHELL := bash
.SHELLFLAGS := -eo pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch for the CPU is a tenth of the size. For a GPU: make bench TORCH_INDEX=https://pypi.org/simple
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
ARGS ?=
# `make bench BENCH=pipeline ARGS=--quick` runs one of them.
BENCH ?= $(filter-out report,$(basename $(notdir $(wildcard tools/bench/*.py))))

# The tests start hundreds of interpreters, and each would compile the package anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo demo-remote demo-cluster test test-slow test-trainers test-cluster lint docs docs-serve test-docs linkcheck bench bench-report suites soak mutants clean
.NOTPARALLEL:

demo: $(VENV)/has-demo
	$(BIN)/mpwds demo $(ARGS)

# Tests often wait for processes, so three run at a time on two cores. Each takes whole files, for the
# sake of their fixtures, until nothing else is left to do.
PYTEST = $(BIN)/python -m pytest -n 3 --dist worksteal

# Two servers, of which one is killed half way.
demo-remote: $(VENV)/has-demo
	$(BIN)/mpwds demo --remote $(ARGS)

# Two nodes of Ray on this machine with a server each, of which one is killed half way.
demo-cluster: $(VENV)/has-demo $(VENV)/has-ray
	$(BIN)/mpwds demo --cluster $(ARGS)

test: $(VENV)/has-test $(VENV)/has-peers
	$(PYTEST) -m "not slow" $(ARGS)

# Many rounds of faults, whole programs of users, long comparisons with other packages, type checkers.
test-slow: $(VENV)/has-test $(VENV)/has-peers $(VENV)/has-lint
	$(PYTEST) -m slow $(ARGS)

# With Lightning, Accelerate, Transformers, Keras and jax; with Ray Train where `make test-cluster` has installed it.
test-trainers: $(VENV)/has-test $(VENV)/has-trainers
	$(BIN)/python -m pytest $(or $(ARGS),tests/trainers)

# Clusters of Ray whose nodes are killed, and the files for Kubernetes and Slurm.
test-cluster: $(VENV)/has-cluster
	$(BIN)/python -m pytest $(or $(ARGS),tests/cluster)

lint: $(VENV)/has-test $(VENV)/has-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

# The site, in build/docs. A warning is an error.
docs: $(VENV)/has-docs
	$(BIN)/sphinx-build -j auto -q -W --keep-going docs build/docs $(ARGS)

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs $(or $(PORT),8000)

# Links and anchors of all pages, and what the search finds.
test-docs: docs $(VENV)/has-test
	$(BIN)/python -m pytest $(or $(ARGS),tests/site)

# Links to other sites. `.ci/run` leaves it out, as it needs a network.
linkcheck: $(VENV)/has-docs
	$(BIN)/sphinx-build -b linkcheck -j auto -q docs build/linkcheck $(ARGS)

# What cannot be installed here is left out, and the benchmarks say so.
bench: $(VENV)/has-test $(VENV)/has-peers
	@$(MAKE) --no-print-directory $(VENV)/has-bench || true
	for bench in $(BENCH); do $(BIN)/python tools/bench/$$bench.py $(ARGS) || exit 1; done

# The same as a page of the site, docs/proof/report.md, beside all peers. `make bench-report ARGS="--only loader resume"`
bench-report: $(VENV)/has-test $(VENV)/has-peers
	@$(MAKE) --no-print-directory $(VENV)/has-report || $(MAKE) --no-print-directory $(VENV)/has-bench || true
	$(BIN)/python tools/bench/report.py $(ARGS)

# The tests that webdataset's authors wrote, with webdataset and with mpwds. `make suites ARGS="torch --file F"`
# runs torch's of DataLoader. Not in `.ci/run`, as it needs a network.
suites: $(VENV)/has-test
	$(BIN)/python tools/suites.py $(or $(ARGS),webdataset)

# `make soak ARGS="--minutes 1"`; then trainings that go on after faults with other numbers of ranks; then
# trainers that are killed at random moments, new ones each time; then a million messages of garbage, ten
# thousand connections, and minutes of chaos for servers.
soak: $(VENV)/has-test
	$(BIN)/python tools/soak.py $(ARGS)
	$(BIN)/python tools/chaos.py $(ARGS)
	MPWDS_FAULT_ROUNDS=20 MPWDS_FAULT_SEED=$$(date +%s) \
	    $(BIN)/python -m pytest --timeout 600 tests/loader/faults/test_trainer_ends.py -k a_signal_ends
	MPWDS_LONG=1 $(BIN)/python -m pytest -m slow -n 2 --timeout 1800 tests/feed/faults/test_chaos.py \
	    tests/feed/faults/test_connections.py tests/feed/test_hostile_clients.py

# Breaks the package at random places, one at a time, and prints which breaks no test notices.
# `make mutants ARGS="loader/engine --count 20"`
mutants: $(VENV)/has-mutants $(VENV)/has-peers
	$(BIN)/python tools/mutants.py $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

INSTALL = $(BIN)/python -u -m pip install --disable-pip-version-check --constraint tools/constraints.txt
# A line for each package that is downloaded, with its size, in place of all that pip tells.
SHORTLY = sed -un -e '/\.metadata/d; s/ (from .*//; s/^Installing collected.*/  unpacking/p' \
	-e 's/^ *\(Downloading\|Using cached\|Processing\) \(.*\/\)\?\([^-]*-[^-]*\)-.*\.whl/  \3/p'

# An extra of pyproject.toml.
$(VENV)/has-%: $(VENV)/has-torch pyproject.toml
	@echo "Installing mpwds[$*] into $(VENV)"
	@$(INSTALL) --editable '.[$*]' | $(SHORTLY)
	@touch $@

# In a folder of their own: programs that compare with them add it to the end of their path.
$(VENV)/has-peers: $(VENV)/has-torch tools/peers.txt
	@echo "Installing packages to compare with into $(VENV)/peers"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps --upgrade --target $(VENV)/peers -r tools/peers.txt | $(SHORTLY)
	@touch $@

$(VENV)/has-torch: tools/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "mpwds needs Python 3.10 or later: make PYTHON=/path/to/python3")'
	@echo "Installing torch into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --no-deps --retries 1 --extra-index-url $(TORCH_INDEX) torch | $(SHORTLY)
	@touch $@
