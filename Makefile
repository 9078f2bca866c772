# Every target creates .venv and installs what it needs; Python 3.11 or newer and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist worksteal
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-slow test-lowest check docs docker format clean help

help:
	@echo "make demo       train a biased classifier, repair it, and write one page that shows the difference"
	@echo "make test       lint, types and the default tests, in two processes of one thread each (or JOBS=8)"
	@echo "make test-slow  tests marked slow: documentation, browser, Ray, several processes, long training"
	@echo "make test-lowest  tests with the lowest versions of the dependencies that pyproject.toml allows"
	@echo "make check      make test, make test-slow and make docs"
	@echo "make docs       write the generated pages and build the documentation into site/"
	@echo "make docker     build the CPU image spurless (PIP_INDEX_ARGS=... are options of pip), if docker is running"
	@echo "make format     format the code"
	@echo "make clean      remove everything that these targets created"

demo: $(VENV)/.run
	$(BIN)/spurless demo

test: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.dev
	$(PYTEST) -m slow

# the lowest versions in pyproject.toml, in an environment of its own, with tests of everything that uses them
LOWEST = torch torchvision lightning numpy scikit-learn scipy pillow safetensors typer rich jinja2 plotly captum \
	filelock markupsafe threadpoolctl timm
test-lowest:
	$(PYTHON) -m venv $(VENV)-lowest
	$(PYTHON) tests/test_dependencies.py $(LOWEST) > $(VENV)-lowest/lowest.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --editable '.[timm,onnx]' pytest pytest-timeout \
		--constraint $(VENV)-lowest/lowest.txt
	OMP_NUM_THREADS=1 $(VENV)-lowest/bin/python -m pytest -m "not slow" -o filterwarnings=default \
		tests/core tests/data/loaders tests/metrics tests/models tests/train tests/methods/test_contract.py \
		tests/methods/test_dfr.py tests/explain tests/reporting tests/cli

check: test test-slow docs

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

PIP_INDEX_ARGS ?=
docker:
	@if docker info >/dev/null 2>&1; then \
		docker build --tag spurless --build-arg PIP_INDEX_ARGS="$(PIP_INDEX_ARGS)" .; \
	else echo "skipped: docker is not installed or not running"; fi

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(VENV)-lowest site dist build demo .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Spurless needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.run
