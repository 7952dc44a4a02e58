# The two commands of the README: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ORACLE := .venv-oracle
MUTANTS := .venv-mutants

.PHONY: demo fast test test-all golden fuzz hostile mutants lint docs notebooks picture gallery clean

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

# Compiles the core and installs it into .venv in place of the sources; `make test` puts these back.
fast: | $(BIN)/python
	PAGESIM_COMPILE=1 $(BIN)/pip install --quiet --disable-pip-version-check .
	rm -f $(VENV)/.base $(VENV)/.test
	cd / && $(CURDIR)/$(BIN)/pagesim doctor | grep compiled

SCREENSHOT := chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=8000

# The first figure of the README, of the demo's page; and that of docs/how-to/report.md, of the page about what it stores.
picture: demo
	$(SCREENSHOT) --window-size=1330,856 --screenshot=docs/pictures/allocators.png file://$(CURDIR)/out/demo.html
	$(BIN)/pagesim report out/demo --out out/report.html
	$(SCREENSHOT) --window-size=1200,985 --screenshot=docs/report.png file://$(CURDIR)/out/report.html
	$(BIN)/python -c "from PIL import Image; \
	    [Image.open(file).convert('RGB').quantize(256, Image.Quantize.MAXCOVERAGE).save(file, optimize=True) \
	    for file in ('docs/pictures/allocators.png', 'docs/report.png')]"

# The figure of docs/explanation/hybrid.md and its numbers.
gallery: $(VENV)/.base
	$(BIN)/pagesim plan --saturate --out out/gallery
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

# The documents as a site in out/site.
docs: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Executes them and stores their outputs.
notebooks: $(VENV)/.test
	$(BIN)/python notebooks/store.py

fuzz: $(VENV)/.test
	FUZZ_ROUNDS=$(or $(ROUNDS),1400) FUZZ_SEED=$(or $(SEED),1) $(BIN)/pytest -n 2 -k changed_file \
	    -o faulthandler_timeout=60 tests/fuzz/test_readers.py

hostile: $(VENV)/.test
	HOSTILE_SEED=$(or $(SEED),1) $(BIN)/pytest -n 2 -m slow tests/fuzz/test_hostile.py

# Draws changes to the sources and lists those that no test finds; OF names a file of tests/mutation. It makes them
# in a copy of what git knows.
$(MUTANTS)/.ready: tests/mutation/requirements.txt
	$(PYTHON) -m venv $(MUTANTS)
	$(MUTANTS)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

mutants: $(VENV)/.test $(MUTANTS)/.ready
	rm -rf out/mutants && mkdir -p out/mutants/copy
	git ls-files -z | tar --create --null --files-from - | tar --extract --directory out/mutants/copy
	ln -s $(CURDIR)/$(VENV) out/mutants/copy/$(VENV)
	cd out/mutants/copy && COSMIC=$(CURDIR)/$(MUTANTS)/bin && RAY=tests/mutation/$(or $(OF),served).toml && \
	    $$COSMIC/cosmic-ray baseline $$RAY && $$COSMIC/cosmic-ray init $$RAY ../session.sqlite && \
	    $$COSMIC/python tests/mutation/sample.py ../session.sqlite --mutants $(or $(COUNT),60) --seed $(or $(SEED),1) && \
	    $$COSMIC/cosmic-ray exec $$RAY ../session.sqlite && \
	    $$COSMIC/cr-report --surviving-only --show-diff ../session.sqlite

clean:
	rm -rf $(VENV) $(ORACLE) $(MUTANTS) out build dist *.egg-info
