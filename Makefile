# make demo: learned features from nothing, in minutes.   make test: all tests.   make check: before a commit.
# make mutants: deliberate bugs in the numerics, each of which a test must find; some 15 minutes.
# make soak: kills, faults, damaged and hostile files, after which nothing may be lost; some 10 minutes.
# make gallery: the pictures of the gallery and the live page, from new demo runs; needs chromium.
# make notebooks: the outputs of docs/notebooks, executed in full; some 10 minutes.
# make docs: the site of the documentation, in site/.
# make architecture: the picture and the table of docs/explanation/architecture.md.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
DOCS_READY := .venv/docs-ready
SOAK ?=  # options of the campaign, such as SOAK=--short

.PHONY: demo test check format mutants soak docs notebooks gallery architecture clean

demo: $(READY)
	$(BIN)/unshuffle pretrain --preset demo

test: $(READY)
	$(BIN)/pytest -n 2

check: $(READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 -m "not slow"

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

mutants: $(READY)
	$(BIN)/python tools/mutants.py

soak: $(READY)
	PYTHONPATH=tools $(BIN)/python -m soak $(SOAK)

docs: $(DOCS_READY)
	$(BIN)/python tools/documentation.py

gallery: $(READY)
	$(BIN)/python tools/gallery.py

notebooks: $(READY)
	$(BIN)/python tools/notebooks.py

architecture: $(READY)
	$(BIN)/python tools/architecture.py

# Made once, and again only when the dependencies change. The benchmark of rivals needs lightly's loss, head and
# transforms, which need torch alone; its other dependencies would replace those of moto.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "unshuffle needs Python 3.11 or newer: make PYTHON=python3.12"; exit 2; }
	@echo "Installing into .venv, once (torch is large: a few minutes)"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev-more]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps "lightly>=1.5.20"
	@touch $(READY)

# What only the site needs.
$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[docs]"
	@touch $(DOCS_READY)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist site
