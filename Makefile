# Every target sets up what it needs; nothing is installed twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
LOADGEN_CACHE ?= $(HOME)/.cache/loadgen
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-13s %s\n", $$1, $$2}'

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

# SGLang: the user's own, where SGLANG_PYTHON says which, or one for a CPU in a cache that all clones share.
SGLANG_ENV = $(LOADGEN_CACHE)/sglang-$(shell sha256sum requirements-sglang.lock | cut -c 1-12)-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
TINY_MODEL = $(LOADGEN_CACHE)/model-$(shell sha256sum loadgen/sglang/cpu/model.py | cut -c 1-12)
ifdef SGLANG_PYTHON
WITH_SGLANG = SGLANG_PYTHON='$(SGLANG_PYTHON)' SGLANG_MODEL='$(SGLANG_MODEL)'
else
WITH_SGLANG = SGLANG_PYTHON='$(SGLANG_ENV)/bin/python' SGLANG_MODEL='$(or $(SGLANG_MODEL),$(TINY_MODEL))' LOADGEN_SGLANG_STANDINS=1
endif

.PHONY: setup-sglang
setup-sglang: $(CORE) ## the released SGLang for a CPU, and a tiny model; or [SGLANG_PYTHON=… SGLANG_MODEL=…] your own
ifdef SGLANG_PYTHON
	@test -n "$(SGLANG_MODEL)" || { echo "SGLANG_PYTHON is given: say which model it is to serve, too, with SGLANG_MODEL=…" >&2; exit 2; }
	@PYTHONPATH='$(CURDIR)' '$(SGLANG_PYTHON)' -c 'import sglang' || { echo "$(SGLANG_PYTHON) has no SGLang" >&2; exit 2; }
	@PYTHONPATH='$(CURDIR)' '$(SGLANG_PYTHON)' -c 'import loadgen.run' || { echo "$(SGLANG_PYTHON) lacks packages of loadgen's: run $(SGLANG_PYTHON) -m pip install '.[sglang]' here" >&2; exit 2; }
	@echo "your own SGLang is used ($(SGLANG_PYTHON)): nothing is installed" >&2
else
	@sh loadgen/sglang/cpu/setup.sh '$(PYTHON)' '$(SGLANG_ENV)' '$(TINY_MODEL)' requirements-sglang.lock
endif

# With TARGET=sglang a command finds it, and sets it up first.
RUN = $(if $(filter sglang,$(TARGET)),$(WITH_SGLANG)) $(BIN)/loadgen
OPTIONS = $(if $(TARGET),--target $(TARGET)) $(if $(SEED),--seed $(SEED)) $(foreach set,$(SET),--set '$(set)') $(if $(OUT),--out $(OUT))
NEEDED = $(CORE) $(if $(filter sglang,$(TARGET)),setup-sglang)
NAMED = @test -n "$(NAME)" || { echo "say which scenario: make $@ NAME=burst. There are:" >&2; $(BIN)/loadgen scenarios >&2; exit 2; }

.PHONY: scenario
scenario: $(NEEDED) ## run a scenario: make scenario NAME=burst [TARGET=sglang|URL] [MODE=oneshot|static] [SEED=1] [SET="arrivals.rate=8 …"] [OUT=folder]
	$(NAMED)
	@$(RUN) run $(NAME) $(OPTIONS) $(if $(MODE),--mode $(MODE))

.PHONY: pair
pair: $(NEEDED) ## the same prompts in every mode, from one batch to the service: make pair NAME=burst [TARGET=sglang] [REPEATS=3] [SWITCH=prefix_caching] [SEED=1] [SET=…] [OUT=folder]
	$(NAMED)
	@$(RUN) pair $(NAME) $(OPTIONS) $(if $(REPEATS),--repeats $(REPEATS)) $(if $(SWITCH),--switch $(SWITCH))

.PHONY: scenarios
scenarios: $(CORE) ## list the scenarios, each with its question
	@$(BIN)/loadgen scenarios

.PHONY: test
test: $(DEV) ## the fast tests, under four minutes
	@$(BIN)/pytest

.PHONY: test-sglang
test-sglang: $(DEV) setup-sglang ## the tests with the real SGLang, under 15 minutes
	@$(WITH_SGLANG) $(BIN)/pytest -p real tests/with_sglang

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
