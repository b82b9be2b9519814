# Front door of the project. `make demo` and `make test` do all set-up by themselves.
PRESET ?= cpu
JOBS ?= $(shell nproc)
SECONDS_EACH ?= 60
PYTHON := $(HOME)/.cache/baleen/python/bin/python
RESULTS := bench/results/cpu
TODAY = $(shell date +%F)
BUILD := build/$(PRESET)
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.PHONY: help bootstrap configure build program test check-long fuzz demo format check gpu-bundle goldens clean
.DEFAULT_GOAL := help

help:            ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/:/' | column -t -s:

bootstrap:       ## install the dependencies (apt and pip)
	@tools/bootstrap

build/.bootstrapped: tools/bootstrap requirements/libtorch.txt requirements/test.txt requirements/disassemblers.txt requirements/xgrammar.txt cmake/xgrammar/CMakeLists.txt
	@tools/bootstrap
	@mkdir -p build && touch $@

$(BUILD)/build.ninja: build/.bootstrapped CMakePresets.json
	@echo "configure: preset $(PRESET)"
	@cmake --preset $(PRESET) >$(BUILD).configure.log 2>&1 || { cat $(BUILD).configure.log; exit 1; }

configure: $(BUILD)/build.ninja  ## run CMake for PRESET (default cpu)

build: $(BUILD)/build.ninja  ## build everything for PRESET; the program is build/bin/baleen
	@echo "build: preset $(PRESET), $(JOBS) jobs"
	@cmake --build $(BUILD) -j $(JOBS)
	@mkdir -p build/bin
	@if [ -x $(BUILD)/bin/baleen ]; then ln -sf ../$(PRESET)/bin/baleen build/bin/baleen; fi

test: build      ## build and run every test that a CPU can run, if its inputs changed since it passed (ALL=1: every one)
	@echo "test: preset $(PRESET)"
	@tools/run_tests.py $(BUILD) --jobs $(JOBS) $(if $(ALL),--all)

program: $(BUILD)/build.ninja  ## build the program alone: build/bin/baleen
	@echo "program: preset $(PRESET), $(JOBS) jobs"
	@cmake --build $(BUILD) -j $(JOBS) --target baleen
	@mkdir -p build/bin && ln -sf ../$(PRESET)/bin/baleen build/bin/baleen

check-long: build ## the long form of checks that `make test` runs in short; rows go to bench/results/cpu
	@export BALEEN_BIN=$(BUILD)/bin PYTHONDONTWRITEBYTECODE=1 BALEEN_RESULTS=$(RESULTS)/$(TODAY)-structured.csv BALEEN_CHECKS=$(RESULTS)/$(TODAY)-check-long.csv; \
	  BALEEN_LONG=1 $(PYTHON) -m pytest -q -p no:cacheprovider tests/e2e/test_structured_answers.py \
	  tests/e2e/test_agent_sessions.py tests/e2e/test_schemathesis.py tests/e2e/test_program.py tests/e2e/test_train.py tests/e2e/test_rl.py
	@BALEEN_BIN=$(BUILD)/bin PYTHONDONTWRITEBYTECODE=1 $(PYTHON) tests/soak/soak.py --csv $(RESULTS)/$(TODAY)-soak.csv
	@$(PYTHON) tools/rl_controls.py --bin $(BUILD)/bin/baleen --work $(BUILD)/rl-controls --csv $(RESULTS)/$(TODAY)-rl-controls.csv
	@$(MAKE) --no-print-directory fuzz FUZZ_CSV=$(RESULTS)/$(TODAY)-fuzz.csv

fuzz: build/.bootstrapped ## fuzz parsers and server, SECONDS_EACH (60); needs Clang
	@tools/bootstrap --fuzz
	@cmake --preset fuzz >build/fuzz.configure.log 2>&1 || { cat build/fuzz.configure.log; exit 1; }
	@cmake --build build/fuzz -j $(JOBS) --target fuzz_targets
	@tests/fuzz/run.py --seconds $(SECONDS_EACH) $(if $(FUZZ_CSV),--csv $(FUZZ_CSV))

demo: program    ## serve models/abacus, ask it a question, show the streamed answer
	@tools/demo

gpu-bundle:      ## pack kernel tests and benchmarks for a GPU host: build/gpu-bundle
	@$(MAKE) --no-print-directory build PRESET=cuda-kernels
	@rm -rf build/gpu-bundle && mkdir -p build/gpu-bundle/bin
	@for program in kernel_tests kernel_bench; do strip -o build/gpu-bundle/bin/$$program build/cuda-kernels/bin/$$program; done
	@cp tools/plot_kernels.py build/gpu-bundle && cp tools/gpu_run build/gpu-bundle/gpu-run && git describe --always --dirty >build/gpu-bundle/commit
	@mkdir -p build/gpu-bundle/lib && ldd build/gpu-bundle/bin/kernel_bench | awk '/fmt|spdlog|prometheus/ {print $$3}' | xargs -r cp -Lt build/gpu-bundle/lib
	@du -sh build/gpu-bundle

goldens:         ## make the model fixtures of tests/golden again from their references
	@tools/goldens/run

format:          ## mend the layout of all C++ files
	@tools/check_format --fix

check:           ## format, rooms, and names that the pages give
	@tools/check_format
	@python3 tools/check_rooms.py
	@python3 tools/check_docs.py
	@python3 tools/generate_wgmma.py --check

clean:           ## remove all build output
	@rm -rf build
