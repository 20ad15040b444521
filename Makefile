# The few verbs of this repository. Each sets up what it needs: `make demo` on a fresh machine is enough.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test check bench generate clean

help: ## Show these verbs
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## Make the virtual environment with the exact versions of constraints.txt

$(READY): pyproject.toml producers/pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or newer, or say make PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ./producers -e '.[dev]'
	@touch $@

demo: $(READY) ## Sample traffic through a real Redis and a real worker, about 30 seconds
	$(BIN)/tracejudge demo

test: $(READY) ## The whole test suite
	$(BIN)/python -m pytest -n 4 --dist loadfile

check: $(READY) ## Lint, format, types, generated files, documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks docs tests/typed_consumer.py
	$(BIN)/python -m docs.generate --check
	$(BIN)/python -m deploy.generators --check
	$(BIN)/python -m deploy.dashboards --check
	$(BIN)/python -m docs.check

bench: $(READY) ## Measure speed, ratios side by side in one run, about eight minutes
	$(BIN)/python -m benchmarks

generate: $(READY) ## Write the generated files anew
	$(BIN)/python -m docs.generate
	$(BIN)/python -m deploy.generators
	$(BIN)/python -m deploy.dashboards

clean: ## Remove what the verbs above made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
