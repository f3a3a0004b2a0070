# Two commands do everything on a fresh machine: `make run` and `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := tests/node/node_modules/.ready
BENCH := .venv-bench
PYTEST := $(BIN)/python -m pytest
# Two at a time, a file to each: most tests wait for processes and servers of their own.
TWO := -n 2 --dist loadfile

.PHONY: help run test quick lint types contracts bench build conformance faults soak lock clean

help:  ## what there is to type
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "The environment could not be made; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src
	@touch $@

$(PEERS): tests/node/package-lock.json
	@command -v npm > /dev/null || { echo "npm is needed for the servers that the tests run against: install Node 20"; exit 1; }
	cd tests/node && npm ci --silent
	@touch $@

run: $(READY)  ## see in ten seconds what this is
	@$(BIN)/python examples/quickstart/tour.py

test: $(READY) $(PEERS) lint types contracts  ## lint, types, import contracts and every test
	$(PYTEST) -q $(TWO)

quick: $(READY) $(PEERS) lint types  ## the inner loop: lint, types and the fast tests
	$(PYTEST) -q -x $(TWO) -m "not slow and not faults and not conformance" \
		--ignore=tests/http --ignore=tests/contracts --ignore=tests/sources/mcp \
		--ignore-glob='tests/calls/*faults*' --ignore=tests/pubsub --ignore=tests/cli

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy

contracts: $(READY)
	$(BIN)/lint-imports --no-logo

$(BENCH)/.ready: bench/requirements.lock pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/requirements.lock
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

conformance: $(READY) $(PEERS)  ## the MCP conformance suite's client scenarios
	$(PYTEST) -q -s -m conformance tests/sources/mcp/test_conformance.py

faults: $(READY)  ## every fault scenario of the call protocol, and ten minutes of random faults on each transport
	$(BIN)/python -m tests.calls.faults
	$(PYTEST) -q -s -m "fault or faults" tests/calls tests/contracts tests/pubsub

soak: $(READY)  ## fifteen minutes at half the most, on each transport: does anything grow?
	$(BIN)/python -m bench.soak

bench: $(BENCH)/.ready  ## side-by-side benchmarks, printed as ratios
	$(BENCH)/bin/python -m bench

build: $(READY)  ## the wheel and the source archive, in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .

lock: $(READY)  ## write the versions that are installed now to requirements.lock
	$(BIN)/python -m pip freeze --exclude-editable --exclude operations > requirements.lock

clean:  ## remove everything that was made here
	rm -rf $(VENV) $(BENCH) tests/node/node_modules bench/node_modules dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache
