# The two commands of the README: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ORACLE := .venv-oracle

.PHONY: demo test test-all golden fuzz hostile lint notebooks picture gallery clean

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

# The figure in docs/report.md, of the page about what the demo stores.
picture: demo
	$(BIN)/pagesim report out/demo --out out/demo.html
	chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=8000 \
	    --window-size=1200,985 --screenshot=docs/report.png file://$(CURDIR)/out/demo.html
	$(BIN)/python -c "from PIL import Image; file = 'docs/report.png'; \
	    Image.open(file).convert('RGB').quantize(256, Image.Quantize.MAXCOVERAGE).save(file, optimize=True)"

# The figure of docs/hybrid.md and its numbers.
gallery: $(VENV)/.base
	$(BIN)/pagesim gallery --out out/gallery
	cp out/gallery/gallery.csv docs/pictures/
	$(BIN)/python -c "from PIL import Image; \
	    Image.open('out/gallery/gallery.png').convert('RGB').quantize(256, Image.Quantize.MAXCOVERAGE) \
	    .save('docs/pictures/gallery.png', optimize=True)"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy pagesim
	$(BIN)/lint-imports
	$(BIN)/python tests/words.py

test: lint
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test-all: $(VENV)/.test
	$(BIN)/pytest -n 2 --dist worksteal -m slow --hypothesis-profile=thorough

# Remakes the golden logs with the vLLM that they are of, in an environment of its own; ONLY="NAME …" some of them.
$(ORACLE)/.ready: tests/oracles/requirements.txt
	$(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

golden: $(VENV)/.base $(ORACLE)/.ready
	$(BIN)/python tests/oracles/remake.py --python $(ORACLE)/bin/python --wheels $(ORACLE)/wheels --out out/golden \
	    $(if $(ONLY),--only $(ONLY))

# Executes them and stores their outputs.
notebooks: $(VENV)/.test
	$(BIN)/python notebooks/store.py

fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzz/run.py --files 100000 --seed 1

# CHECKOUT=folder tries another one.
hostile: $(VENV)/.test
	$(BIN)/python tests/fuzz/hostile.py --seed 1 $(if $(CHECKOUT),--checkout $(CHECKOUT))

clean:
	rm -rf $(VENV) $(ORACLE) out build dist *.egg-info
