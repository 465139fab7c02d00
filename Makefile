# Every target sets up what it needs; nothing is installed twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "loadgen needs Python 3.11 or later; say which with PYTHON=…" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(CORE): requirements.lock pyproject.toml | $(BIN)/python
	@echo "installing the pinned packages into $(VENV) (once)" >&2
	@$(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): requirements-dev.lock $(CORE)
	@echo "installing the test tools into $(VENV) (once)" >&2
	@$(PIP) --require-hashes -r requirements-dev.lock
	@touch $@

.PHONY: setup
setup: $(CORE) ## make .venv from the lock file

.PHONY: scenario
scenario: $(CORE) ## run a scenario: make scenario NAME=burst [TARGET=URL] [SEED=1] [SET="arrivals.rate=8 …"] [OUT=folder]
	@test -n "$(NAME)" || { echo "say which scenario: make scenario NAME=burst. There are:" >&2; $(BIN)/loadgen scenarios >&2; exit 2; }
	@$(BIN)/loadgen run $(NAME) $(if $(TARGET),--target $(TARGET)) $(if $(SEED),--seed $(SEED)) $(foreach set,$(SET),--set '$(set)') $(if $(OUT),--out $(OUT))

.PHONY: scenarios
scenarios: $(CORE) ## list the scenarios, each with its question
	@$(BIN)/loadgen scenarios

.PHONY: test
test: $(DEV) ## the fast tests, under four minutes
	@$(BIN)/pytest

.PHONY: check
check: $(DEV) ## format, lint, types, import contracts
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: format
format: $(DEV) ## format and mend what the linter can
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

.PHONY: schema
schema: $(CORE) ## write scenarios/scenario.schema.json from the models
	@$(BIN)/loadgen scenarios schema > scenarios/scenario.schema.json

.PHONY: lock
lock: ## pin the newest versions that fit (needs uv)
	uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate pyproject.toml --group build -o requirements.lock
	uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock

.PHONY: clean
clean: ## remove .venv and caches; records in runs/ stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.PHONY: bench
bench: $(DEV) ## what the pure parts cost, in microseconds
	@$(BIN)/python benchmarks/core.py
