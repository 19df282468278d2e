# The Python that builds .venv, and that `make gpu` runs as it stands.
PYTHON ?= python3
PYTEST_ARGS ?= -n 2
GPU_ARGS ?=
VERIFY_ARGS ?=

# The tests' matrices are small: a thread for each xdist worker beats workers that compete for the same cores.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BIN := .venv/bin
INSTALLED := .venv/.installed
WHEEL := $(CURDIR)/build/wheel
phase = @printf '\n== %s\n'

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help test demo quick lint types wheel format verify results bench gpubench gpu clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: lint types wheel ## set up, check format, lint and types, then test the built wheel: what CI runs
	$(phase) 'tests, on the wheel'
	@ENRNN_EXPECT_WHEEL=1 PYTHONPATH='$(WHEEL)' $(BIN)/pytest $(PYTEST_ARGS)

demo: $(INSTALLED) ## two minutes on a CPU: ENRNN, scoRNN and an LSTM side by side on the adding problem
	@$(BIN)/enrnn demo --runs build/demo

quick: $(INSTALLED) ## the tests alone, on the editable install
	@$(BIN)/pytest $(PYTEST_ARGS)

lint: $(INSTALLED) ## check format and lint
	$(phase) 'format'
	@$(BIN)/ruff format --check .
	$(phase) 'lint'
	@$(BIN)/ruff check .

types: $(INSTALLED) ## check types
	$(phase) 'types'
	@$(BIN)/mypy

wheel: $(INSTALLED) ## build the wheel and unpack it under build/wheel
	$(phase) 'wheel'
	@rm -rf build/dist '$(WHEEL)'
	@$(BIN)/pip wheel -qq --no-deps --no-build-isolation --wheel-dir build/dist .
	@$(BIN)/pip install -qq --no-deps --target '$(WHEEL)' build/dist/enrnn-*.whl

format: $(INSTALLED) ## rewrite the sources in the house format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

verify: $(INSTALLED) ## the second tier: every check with raised counts, recorded under verification/
	@$(BIN)/python tools/verify.py $(VERIFY_ARGS)

results: $(INSTALLED) ## RESULTS.md, its figures and the table in README.md, from the runs under results/
	@$(BIN)/python tools/results.py write

bench: $(INSTALLED) ## time the recurrence on the CPU beside PyTorch's own layers; also to build/bench-cpu.json
	@mkdir -p build
	@$(BIN)/pytest -q tests/recurrence/test_cpu.py tests/recurrence/test_dispatch.py
	@$(BIN)/python benchmarks/recurrence_cpu.py --growth --json build/bench-cpu.json

gpubench: ## the same on a GPU beside cuDNN, with this machine's own Python and torch; also to build/bench-gpu.json and bench-layer.json
	@mkdir -p build
	@PYTHONPATH=src $(PYTHON) benchmarks/recurrence_cuda.py --growth --json build/bench-gpu.json
	@PYTHONPATH=src $(PYTHON) benchmarks/layer_step.py --json build/bench-layer.json

gpu: ## the GPU tests, with this machine's own Python and torch
	@PYTHONPATH=src $(PYTHON) -m pytest -m gpu $(GPU_ARGS)

clean: ## remove what was built, but keep .venv
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(phase) 'virtual environment'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'enrnn needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -m venv .venv

# torch goes first and by its pin: a range would let pip choose the newest release, which on Linux can mean gigabytes of CUDA
# libraries where a CPU build is at hand. hatchling comes along so that our own builds need no isolated environment.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(phase) 'dependencies'
	@$(BIN)/pip install -qq -c constraints.txt torch hatchling
	@$(BIN)/pip install -qq -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@
