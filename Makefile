# Everything happens in .venv, which is made and kept up to date as needed. ARGS="..." is handed on.

VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
INSTALLED := $(VENV)/.installed

# the first interpreter that runs and is new enough; a name alone may be a shim with nothing behind it
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$python && break; done)
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test soak check documented bench format clean distclean
.DELETE_ON_ERROR:

help:
	@echo "make demo       one script on 1 and 3 workers, one of them killed: the same bits"
	@echo "make test       run every test"
	@echo "make soak       random programs, ways and histories, judged by the laws: ARGS=\"--minutes 30 --seed 7\""
	@echo "make check      lint, format, types, layers, spelling"
	@echo "make documented run every command line of README and docs"
	@echo "make bench      compare with raw DDP, Lightning, Accelerate and Ray Train"
	@echo "make format     let ruff format the code"
	@echo "make clean      remove caches and build products (make distclean: and $(VENV))"

demo: $(RUNS)
	@$(BIN)/python scripts/demo.py $(ARGS)

test: $(INSTALLED)
	@scripts/install-system-packages
	$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

soak: $(INSTALLED)
	$(BIN)/python -m shoal.testing.soak $(ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

documented: $(INSTALLED)
	@$(BIN)/python scripts/documented_commands.py $(ARGS)

bench: $(INSTALLED)
	$(BIN)/python benchmarks/peers.py $(ARGS)

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(RUNS): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "Python 3.11 or newer is needed and was not found: install it, or say which: make PYTHON=/path/to/python" >&2; \
		exit 1; fi
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: install its venv package" >&2; \
		echo "(Debian and Ubuntu: apt-get install python3-venv), then run make again" >&2; \
		exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch (the first time this takes a minute or two)"
	@$(PIP) torch
	@echo "Installing shoal"
	@$(PIP) --editable '.[digits]'
	@touch $@

$(INSTALLED): $(RUNS)
	@echo "Installing what the tests need: Ray, Spark and clients of HDFS and S3 among it (a few minutes)"
	@$(PIP) --editable '.[dev]'
	@touch $@

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
