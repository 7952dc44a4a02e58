# The two commands of the README: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all fuzz lint clean

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
	$(BIN)/pagesim compare --trace sharegpt --model opt-13b --gpu a100-40gb \
	    --policies contiguous-max,orca-max,orca-pow2,orca-oracle,vllm-sosp \
	    --arrivals poisson --rate 2 --duration 900 --out out/demo

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy pagesim
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n 2 -m "not slow"

test-all: $(VENV)/.test
	$(BIN)/pytest -n 2 -m slow

fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzz/run.py --files 100000 --seed 1

clean:
	rm -rf $(VENV) out build dist *.egg-info
