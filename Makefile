# Two commands set everything up on a fresh machine: make sweep, make test.
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# gpu-check runs where nothing may be installed: with this environment where there is one, else the machine's Python.
GPU_PYTHON ?= $(if $(wildcard $(RUN)),$(RUN),python3)

.PHONY: help sweep reference test test-cluster lint bench gpu-wheels gpu-check check-traces published rivals format clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

sweep: $(STAMP) ## train the four cells of packing x offload and compare them
	$(RUN) -m memexp -m packing=bfd,wrapped offload=true,false

# The sweep files whose tables stand in results/reference.
REFERENCE := main packing checkpointing precision_and_optimizer peft quantization everything_on_sft

reference: $(STAMP) ## make results/reference again, on the simulated GPU; memexp report DIR --since compares with it
	rm -rf $(REFERENCE:%=results/reference/%)
	for name in $(REFERENCE); do \
	  $(RUN) -m memexp -cn sweeps/$$name backend=simulate logger=none results_dir=results/reference sweep=$$name || exit; \
	done

test: $(STAMP) ## run the tests (those that need a GPU are skipped by name)
	$(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-cluster: $(STAMP) ## the cluster launchers on a one-node SLURM (installed with apt where it can be) and a local Ray
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[slurm,ray]'
	command -v slurmctld >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge)
	MEMEXP_REQUIRE_CLUSTER=1 $(RUN) -m pytest -m cluster tests/test_cluster.py

lint: $(STAMP) ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: $(STAMP) ## what a cell costs beside its training: warm against fresh, a thousand of them, and two at once
	$(RUN) -m tools.bench
	$(RUN) -m tools.bench_jobs

gpu-wheels: $(STAMP) ## collect the pure-Python packages that gpu-check takes along to another machine
	$(RUN) -m tools.gpu_wheels collect .wheels

gpu-check: ## a dozen cells measured on this GPU beside their predictions, in six minutes; installs nothing
	PYTHONPATH="$$($(GPU_PYTHON) -m tools.gpu_wheels unpack .wheels)" $(GPU_PYTHON) -m tools.gpu_check

check-traces: $(STAMP) ## replay recorded allocator traces: make check-traces TRACES=folder
	$(RUN) -m memexp.simulate.traces $(TRACES)

rivals: $(STAMP) ## what other tools say of the same jobs
	$(RUN) -m tools.rivals

published: $(STAMP) ## predictions beside what others measured on real cards
	$(RUN) -m tools.published

format: $(STAMP) ## put every file into ruff's format
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

clean: ## remove the virtual environment and what tools left behind
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

# Made anew when a dependency changed; the stamp is last, so that an install that broke off is done again.
$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(VENV): 2 to 3 minutes, and 2 GB with a CPU build of torch, more with a CUDA build."
	$(PYTHON) -m venv --clear $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)
	@echo "Installed. For commands of your own: source $(VENV)/bin/activate"
