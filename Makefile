# Everything sets itself up: a venv in .venv, made once and renewed when pyproject.toml changes. No root needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=
SEEDS ?= 2000
KILLS ?= 6
FIRST ?= 0

.DEFAULT_GOAL := help
.PHONY: help install demo test check unit sim perf e2e chaos

help:  ## list the targets
	@echo "gossipq: make TARGET"
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-10s %s\n", $$1, $$2}'

install: $(STAMP)  ## make .venv and install gossipq with its tools into it

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or later is needed" >&2; \
	  echo " hint: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { echo "error: no venv could be made" >&2; \
	  echo " hint: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	@echo "installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --editable '.[dev]'
	@touch $@

demo: $(STAMP)  ## the main job: publish Python's own sources, consume them with three processes, count
	@$(BIN)/gossipq demo

test: check unit  ## everything: check, then all tests (under 10 minutes)

check: $(STAMP)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

sim: $(STAMP)  ## the cluster simulator and the property tests of the core: SEEDS=40000 for more, SEEDS=1 FIRST=17 for seed 17 again
	GOSSIPQ_SEEDS=$(SEEDS) GOSSIPQ_FIRST=$(FIRST) $(BIN)/python -m pytest tests/sim tests/core --timeout 1800 $(PYTEST_ARGS)

e2e: $(STAMP)  ## only the tests that start real nodes
	$(BIN)/python -m pytest -m e2e $(PYTEST_ARGS)

chaos: $(STAMP)  ## all features at once on a real node that is killed again and again: KILLS=20
	GOSSIPQ_KILLS=$(KILLS) $(BIN)/python -m pytest tests/e2e/test_semantics_kill.py --timeout 1800 $(PYTEST_ARGS)

perf: $(STAMP)  ## measure against the raw loop of perf/limit.py; rows go to perf/RESULTS.md
	$(BIN)/python perf/bench.py
