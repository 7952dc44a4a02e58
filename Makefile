# The two commands of the README: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all lint notebooks clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Stamps, so that a second run installs nothing.
$(VENV)/.base: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@ $(VENV)/.base

demo: $(VENV)/.base
	$(BIN)/pagesim demo --out out/demo

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy pagesim
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n 2 -m "not slow"

test-all: $(VENV)/.test
	$(BIN)/pytest -n 2 -m slow

# Executes them and stores their outputs.
notebooks: $(VENV)/.test
	$(BIN)/python notebooks/store.py

clean:
	rm -rf $(VENV) out build dist *.egg-info
