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
