# Each word makes its own .venv and installs what it needs; Python 3.11 or newer and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test check docs format clean help

help:
	@echo "make demo    a classifier that cheats, its repair, and the proof, on one page"
	@echo "make test    lint, types, tests; the tests in two processes of one thread each, or JOBS=8"
	@echo "make check   what make test does, and the documentation"
	@echo "make docs    the documentation, into site/"
	@echo "make format  format the code"
	@echo "make clean   remove what these words made"

demo: $(VENV)/.run
	$(BIN)/spurless demo

test: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist worksteal

check: test docs

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) site dist build demo .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Spurless needs Python 3.11 or newer; name one with make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.run
