# Every target sets up .venv by itself, once, and again when pyproject.toml or constraints.txt change.

PYTHON ?= python3
WORKERS ?= 2
CELLS ?= 2000
BENCH ?=
DEMO ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCHED := $(VENV)/.benched
DOCUMENTED := $(VENV)/.documented
CHECKED := $(VENV)/.checked

unexport PYTHONDONTWRITEBYTECODE  # Python starts faster with what it has compiled

.DEFAULT_GOAL := help
.PHONY: help demo test check-all bench docs notebooks format lint clean

help:                ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1|/' | awk -F'|' '{printf "  %-16s %s\n", $$1, $$2}'

demo: $(READY)       ## a network folds open; one learns the manual inside Python and writes (DEMO="--minutes 5" passes options on)
	$(BIN)/leporello draw elman --loss
	$(BIN)/leporello draw elman --loss --unfold 3
	@rm -rf runs/demo
	$(BIN)/leporello train --minutes 2 --sample-every 30 --out runs/demo $(DEMO)
	$(BIN)/leporello generate runs/demo --prompt "The " --length 600 --seed 1
	@echo "more: $(BIN)/leporello score runs/demo README.md; examples/; docs/"

test: lint           ## format, lint, types, import directions, tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --timeout 300

check-all: lint $(CHECKED)  ## the same with the slow tests and CELLS=2000 random cells
	LEPORELLO_CELLS=$(CELLS) LEPORELLO_CFLAGS="-O2 -ftree-vectorize" $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not gpu" --timeout 7200

bench: $(BENCHED)    ## measure what is promised of speed and memory, about 12 minutes (BENCH="--suite torch" passes options on)
	PYTHONPATH=. $(BIN)/python -m benchmarks $(BENCH)

docs: $(DOCUMENTED)  ## the site: guides, book, API reference; links are checked (build/site/index.html)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs/site -d build/doctrees . build/site
	@echo "build/site/index.html"

notebooks: $(DOCUMENTED)  ## the pages of the book as notebooks, in both languages (build/notebooks)
	PYTHONPATH=. $(BIN)/python docs/site/notebooks.py build/notebooks

format: $(READY)     ## put code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(READY)       ## what make test does before the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

clean:               ## remove .venv and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist

# torch comes first and alone, so that its build is chosen by the constraint and by nothing else.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[test]'
	@touch $@

# What the benchmarks need beside it; without jax they leave that contestant out and say so.
$(BENCHED): $(READY)
	if $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'; then touch $@; fi

# What only slow tests need.
$(CHECKED): $(READY)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[check]'
	@touch $@

# What the site and the notebooks need beside it: make test does without, and leaves their slow tests to check-all.
$(DOCUMENTED): $(READY)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[docs]'
	@touch $@
