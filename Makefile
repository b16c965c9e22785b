# Everything runs in .venv, which the first target makes when it is not there or when the dependencies change.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*##/  make \1\t/'

demo: $(READY)  ## Train a small model for all sizes, score it before and after, cut it and save the cut
	$(BIN)/python examples/quickstart.py

test: $(READY)  ## Run the tests and the examples in the docstrings, in less than a quarter of an hour
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -m "not slow"

test-all: $(READY)  ## Run the slow tests too: benchmarks, clusters, more runs of several processes
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

lint: $(READY)  ## Check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

clean:  ## Delete what the other targets leave behind, except .venv
	rm -rf quickstart build dist .pytest_cache .mypy_cache .ruff_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

# torch first, and pinned: left to itself, pip may choose a CUDA build that is gigabytes larger than the CPU one.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q torch -c constraints.txt
	$(BIN)/pip install -q -e '.[dev]' -c constraints.txt
	touch $@
