# Targets of this repository. Each sets up what it needs: `make demo` on a fresh machine is enough.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# What the product needs, and what its development needs besides.
RUNTIME := $(VENV)/.runtime
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# uv takes a tenth of the time of pip, and reads none of its settings: pip follows where uv reaches no packages.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt
# The oldest Python that code needs. It takes a member called `file` or `decode` for one of Python 2.
VERMIN := $(BIN)/vermin --quiet --no-tips --violations --exclude file --exclude str.decode
# Five processes on two cores: tests wait, and each process imports and collects all of them; those of `test-all` wait
# longer. Tests that share what their module starts stay in one process.
PYTEST := $(BIN)/python -m pytest -n 5

.PHONY: help setup demo test test-all test-long mutants check style types versions documents site bench generate agreement dist sbom audit clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## Make the virtual environment with the exact versions of constraints.txt

$(BIN)/uv:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or newer, or say make PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) uv

$(RUNTIME): $(BIN)/uv pyproject.toml producers/pyproject.toml constraints.txt
	$(UV) -e ./producers -e '.[board]' || $(PIP) -e ./producers -e '.[board]'
	@touch $@

$(READY): $(BIN)/uv pyproject.toml producers/pyproject.toml constraints.txt
	$(UV) -e ./producers -e '.[dev]' || $(PIP) -e ./producers -e '.[dev]'
	@touch $(RUNTIME) $@

demo: $(RUNTIME) ## Sample traffic through a real Redis and a real worker, about 30 seconds
	$(BIN)/tracejudge demo

test: $(READY) ## Unit and integration tests and short faults, about three minutes on two cores
	$(PYTEST) -m "not slow and not endurance"

test-all: $(READY) ## Those of `test`, and long faults, RabbitMQ, Prometheus and promtool, about 10 minutes; CI runs it
	$(PYTEST) -n 8 -m "not endurance"

test-long: $(READY) ## Started by hand, for hours: soaks, faults and scenarios at full length, removed features, statistics, mutants
	TRACEJUDGE_FAULTS_SCALE=1 TRACEJUDGE_SCENARIO_SCALE=1 $(PYTEST) -n 2 -m "endurance or faults or scenarios"
	$(BIN)/python -m tests.plug --whole
	$(BIN)/python -m benchmarks statistics
	$(MAKE) mutants

mutants: $(READY) ## Change the product in 360 places, and see how many changes a test notices; about an hour
	$(BIN)/python -m tests.mutants

check: style types versions documents ## Lint, format, types, import directions, generated files, documentation, figures of the structure

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports --no-cache
	$(VERMIN) -t=3.10- producers/tracejudge
	$(BIN)/python -m docs.structure

types: $(READY)
	$(BIN)/mypy
	$(BIN)/mypy benchmarks docs tests/typed_consumer.py

versions: $(READY)
	$(BIN)/mypy --python-version 3.10 -p tracejudge
	$(BIN)/mypy --python-version 3.14 -p tracejudge -p judges -p worker

documents: $(READY)
	$(BIN)/python -m docs.generate --check
	$(BIN)/python -m docs.diagrams --check
	$(BIN)/python -m deploy --check
	$(MAKE) --no-print-directory site
	$(BIN)/python -m docs.check

site: $(READY) ## Build the documentation as pages into site/, without the network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

bench: $(READY) ## Measure speed, about an hour; SUITES=guard beside earlier versions only, AGAINST=COMMIT beside another commit
	$(BIN)/python -m benchmarks $(if $(AGAINST),--against $(AGAINST)) $(SUITES)

generate: $(READY) ## Write the generated files anew; a changed diagram needs Chromium, and npm once
	$(BIN)/python -m docs.generate
	$(BIN)/python -m docs.diagrams
	$(BIN)/python -m deploy

agreement: $(READY) ## Measure MODEL, the name of a [models.NAME], on all labelled traces, for docs/reference/agreement.md; MOST=6 of a label
	$(BIN)/python -m docs.agreement "$(MODEL)" "$(or $(MOST),1000)" "$(NOTE)"
	$(BIN)/python -m docs.generate

dist: $(READY) ## Build wheels and source distributions into dist, and check them with twine
	$(BIN)/python -m deploy.release build

sbom: dist ## Write what the wheels bring with them: CycloneDX, beside them in dist
	$(BIN)/python -m deploy.release sbom

audit: sbom ## Look for known vulnerabilities of what the wheels bring; needs a service on the network, so CI leaves it out
	$(BIN)/python -m deploy.release audit

clean: ## Remove what the targets above made
	rm -rf $(VENV) .bench .browser .receivers .mypy_cache .ruff_cache .pytest_cache .hypothesis site
