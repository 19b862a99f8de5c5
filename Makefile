# make demo    set up what the main job needs in .venv, and run it: a real model answers
# make test    set up everything, and run the tests
# make check   formatting, lint, types
# make bench   the figures, side by side with the library alone
# make conformance  the shipped cartridges through all of `cartdeck check`, each cap on a model: ten minutes
# make soak    the tests of faults with the durations of real life, then everything at once for MINUTES=10, from a SEED
# make jitter  the tests with short sleeps where threads and processes meet, ROUNDS=3 times: an order that is rare comes
# make fuzz    the wire's two ends on bytes that a search for new paths makes, for MINUTES=10
#
# Variables:  PYTHON=python3.12   the interpreter to start from (3.11 or newer)
#             VENV=.venv          the environment to set up and use
#             LLAMA=build         build llama-cpp-python once for this CPU and keep it (the default);
#                   FILE.whl      install this wheel instead;
#                   skip          leave it out: the gguf cartridge is then listed as unavailable
#             CMAKE_ARGS=...      how to build it, for instance "-DGGML_CUDA=on"
#             JOBS=2              how many processes the tests run in; 0: in this one, in order
#             ROUNDS=3            how often the tests run with naps
#             MINUTES=...         how long a search or a soak takes
#             SEED=...            what a soak draws from
#             ARGS=...            more arguments for the command that the target runs
# An environment that has llama-cpp-python already keeps the one it has.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
LLAMA ?= build
ARGS ?=
JOBS ?= 2
MINUTES ?=
SEED ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CMAKE_ARGS

STAMPS := $(VENV)/stamps
BIN := $(VENV)/bin
# The script alone reads the pin of llama-cpp-python: a wheel of your own may be another version.
CONSTRAINTS := $(STAMPS)/constraints.txt
INSTALL := $(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS)
COMMA := ,
# The demo needs no torch, which is 750 MB; the tests and figures do.
EXTRAS := $(if $(filter skip,$(LLAMA)),models,models$(COMMA)gguf)
DEV_EXTRAS := $(EXTRAS),torch,server
# One stamp per choice, so that another choice is carried out.
LLAMA_STAMP := $(STAMPS)/llama-$(notdir $(LLAMA))
STAGE := @echo "make:"

.PHONY: help demo test check bench conformance soak jitter fuzz setup setup-dev

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

demo: setup
	@$(BIN)/cartdeck demo $(ARGS)

test: setup-dev
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

check: setup-dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright

bench: $(STAMPS)/bench-$(DEV_EXTRAS)
	$(STAGE) "tokens per second, beside llama-cpp-python in one process"
	@$(BIN)/python benchmarks/bench_generate.py $(ARGS)
	$(STAGE) "the gguf cartridge: prefixes, eight streams, schemas, the loop's delay, loads and cancels"
	@$(BIN)/python benchmarks/bench_gguf.py $(ARGS)
	$(STAGE) "calls, bytes and small messages, beside a raw pipe, gRPC and MCP"
	@$(BIN)/python benchmarks/bench_wire.py $(ARGS)
	$(STAGE) "vectors, speech and texts, beside sentence-transformers and transformers"
	@$(BIN)/python benchmarks/bench_torch.py $(ARGS)
	$(STAGE) "memory, descriptors, threads and tasks of the host"
	@$(BIN)/python benchmarks/bench_memory.py $(ARGS)
	$(STAGE) "downloads, beside huggingface_hub and curl"
	@$(BIN)/python benchmarks/bench_download.py $(ARGS)
	$(STAGE) "plans, beside the same calls by hand"
	@$(BIN)/python benchmarks/bench_plans.py $(ARGS)
	$(STAGE) "the HTTP server, beside bare starlette and llama-cpp-python's own"
	@$(BIN)/python benchmarks/bench_server.py $(ARGS)

conformance: setup-dev
	@$(BIN)/cartdeck check echo
	@CARTDECK_CONFORMANCE=full $(BIN)/python -m pytest -s tests/conformance/test_conformance_samples.py $(ARGS)

soak: setup-dev
	$(STAGE) "the tests of faults, with the durations of real life"
	@CARTDECK_FULL_DURATIONS=1 $(BIN)/python -m pytest tests/faults $(ARGS)
	$(STAGE) "everything at once"
	@$(BIN)/python tests/faults/soak.py --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

jitter: setup-dev
	@$(BIN)/python tests/jitter/run_jitter.py --rounds $(or $(ROUNDS),3) -n $(JOBS) --dist loadfile $(ARGS)

fuzz: $(STAMPS)/fuzz-$(DEV_EXTRAS)
	@$(BIN)/python tests/fuzz/fuzz_wire.py -max_total_time=$$(( $(or $(MINUTES),10) * 60 )) $(ARGS)

setup: $(STAMPS)/cartdeck-$(EXTRAS)
setup-dev: $(STAMPS)/dev-$(DEV_EXTRAS)

# An environment of ours, with a pip that knows dependency groups (an interpreter brings an old one).
$(CONSTRAINTS): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "cartdeck needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -n 1)." \
	    "Name another one: make PYTHON=python3.11" >&2; exit 1; }
	@if [ ! -x $(BIN)/python ]; then \
	  echo "make: creating $(VENV) with $$($(PYTHON) --version)"; \
	  $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "'$(PYTHON) -m venv' failed (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }; \
	fi
	@mkdir -p $(STAMPS)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	@grep -v '^llama-cpp-python==' constraints.txt > $@

$(LLAMA_STAMP): constraints.txt scripts/llama_wheel.py | $(CONSTRAINTS)
	@if [ -f '$(LLAMA)' ]; then \
	  echo "make: installing $(LLAMA)"; $(INSTALL) '$(LLAMA)'; \
	elif [ '$(LLAMA)' != build ]; then \
	  echo "LLAMA=$(LLAMA) is neither 'build', 'skip' nor a wheel file." >&2; exit 1; \
	elif $(BIN)/python -c 'import importlib.metadata as m; m.version("llama-cpp-python")' 2>/dev/null; then \
	  echo "make: using the llama-cpp-python that $(VENV) has"; \
	else \
	  wheel=$$($(BIN)/python scripts/llama_wheel.py); \
	  echo "make: installing $${wheel##*/}"; $(INSTALL) "$$wheel"; \
	fi
	@touch $@

$(STAMPS)/cartdeck-models$(COMMA)gguf $(STAMPS)/cartdeck-models$(COMMA)gguf$(COMMA)torch$(COMMA)server: $(LLAMA_STAMP)
$(STAMPS)/cartdeck-%: pyproject.toml $(CONSTRAINTS)
	$(STAGE) "installing cartdeck[$*] into $(VENV)"
	@$(INSTALL) --editable '.[$*]'
	@touch $@

$(STAMPS)/dev-%: $(STAMPS)/cartdeck-%
	$(STAGE) "installing the development tools into $(VENV)"
	@$(INSTALL) --group dev
	@touch $@

$(STAMPS)/bench-%: $(STAMPS)/dev-%
	$(STAGE) "installing the benchmark's peers into $(VENV)"
	@$(INSTALL) --group bench
	@touch $@

$(STAMPS)/fuzz-%: $(STAMPS)/dev-%
	$(STAGE) "installing the fuzzer into $(VENV)"
	@$(INSTALL) --group fuzz
	@touch $@
