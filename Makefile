# Two commands set everything up on a fresh machine: make sweep, make test.
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: help sweep test lint bench gpu-check check-traces published format clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

sweep: $(STAMP) ## train the four cells of packing x offload and compare them
	$(RUN) -m memexp -m packing=bfd,wrapped offload=true,false

test: $(STAMP) ## run the tests (those that need a GPU are skipped by name)
	$(RUN) -m pytest -n 2

lint: $(STAMP) ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: $(STAMP) ## what a cell costs beside its training, warm against fresh
	$(RUN) -m tools.bench

gpu-check: $(STAMP) ## a dozen cells measured on this GPU beside their predictions
	$(RUN) -m tools.gpu_check

check-traces: $(STAMP) ## replay recorded allocator traces: make check-traces TRACES=folder
	$(RUN) -m memexp.simulate.traces $(TRACES)

published: $(STAMP) ## predictions beside what others measured on real cards
	$(RUN) -m tools.published

format: $(STAMP) ## put every file into ruff's format
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

clean: ## remove the virtual environment and what tools left behind
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

# Made anew when a dependency changed; the stamp is last, so that an install that broke off is done again.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)
