# One command each: set up what is missing, then do the job. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
# SGLang versions the test suite runs against, each unpacked into a folder of its own, and the
# other ones of the supported range, whose sources it reads.
SGLANG_VERSIONS ?= 0.5.16 0.5.20 0.5.22 0.5.23
SGLANG_READ ?= 0.5.17 0.5.18 0.5.19 0.5.21
DEMO_SGLANG ?= 0.5.23
HOSTS := $(foreach v,$(SGLANG_VERSIONS),.hosts/$(v)/.complete) $(foreach v,$(SGLANG_READ),.hosts/$(v)/.unpacked)
# Oldest glibc that both native parts of the wheel run on; tests/packaging compares it with them.
WHEEL_TAG ?= manylinux_2_34
# Test files run side by side; engine tests take most of the time and use one core each.
TEST_WORKERS ?= 2
export IRMINSUL_TEST_HOSTS := $(CURDIR)/.hosts

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: setup
setup: $(VENV)/.complete $(HOSTS) build ## virtual environment, SGLang versions, the extension module

$(VENV)/.complete: requirements/engine.txt
	@command -v cargo >/dev/null || { echo "Rust is needed to build irminsul: https://rustup.rs"; exit 1; }
	$(PYTHON) -c 'import sys; v = sys.version_info; assert v >= (3, 11), f"Python 3.11 or newer is needed, this is {v.major}.{v.minor}: make PYTHON=python3.11"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q uv==0.13.9
	$(UV) pip install -q --compile-bytecode --python $(BIN)/python --no-deps -r requirements/engine.txt
	touch $@

.hosts/%/.complete: | $(VENV)/.complete
	$(UV) pip install -q --compile-bytecode --python $(BIN)/python --no-deps --target .hosts/$* sglang==$*
	touch $@

.hosts/%/.unpacked: | $(VENV)/.complete
	$(UV) pip install -q --python $(BIN)/python --no-deps --target .hosts/$* sglang==$*
	touch $@

.PHONY: build
build: $(VENV)/.complete ## compile the Rust core and install the package in place
	$(BIN)/maturin develop --release --uv -q

# nvcc and CUTLASS from the package index, apart from the environment that runs things.
# With a CUDA 13.0 toolkit of your own: make cuda NVCC=/usr/local/cuda/bin/nvcc CUDA_PYTHON=python3
CUDA_VENV ?= .cuda-venv
CUDA_PYTHON ?= $(CUDA_VENV)/bin/python
CUDA_LIBRARY := python/irminsul/_native/cu13/libirminsul_cuda.so

$(CUDA_VENV)/.complete: cuda/toolchain.txt
	$(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/python -m pip install -q --no-deps -r cuda/toolchain.txt
	touch $@

.PHONY: cuda
cuda: $(if $(NVCC),,$(CUDA_VENV)/.complete) ## compile the CUDA library into the package
	$(CUDA_PYTHON) cuda/build.py --resources $(if $(NVCC),--nvcc $(NVCC))

.PHONY: demo
demo: $(VENV)/.complete .hosts/$(DEMO_SGLANG)/.complete build ## an agent conversation through SGLang on the CPU, with and without reuse
	PYTHONPATH=.hosts/$(DEMO_SGLANG) $(BIN)/irminsul demo $(DEMO_ARGS)

.PHONY: test
test: setup cuda lint wheel ## every check: linters, cargo test, pytest on every SGLang version
	cargo test --workspace --quiet
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile

.PHONY: bench
bench: build ## the core's speed on this machine beside its rivals', results in build/bench/
	mkdir -p build/bench
	cargo run --release --quiet --manifest-path benches/rust/Cargo.toml --bin side_by_side -- build/bench/side_by_side.json
	$(BIN)/python benches/python/peers.py --out build/bench/peers.json

.PHONY: bars
bars: ## which bars the committed results hold
	python3 benches/bars.py

STUDIES := benches/studies
.PHONY: studies
studies: build ## the quality studies on the CPU, 32 samples a cell, results in build/studies/
	mkdir -p build/studies
	$(BIN)/python $(STUDIES)/rotation/run.py --out build/studies/rotation.json
	$(BIN)/python $(STUDIES)/invariance/run.py --out build/studies/invariance.json
	@if [ -e $(STUDIES)/models/weights/config.json ]; then \
		$(BIN)/python $(STUDIES)/models/evaluate.py --check && \
		$(BIN)/python $(STUDIES)/consistency/run.py --check; \
	else echo "no trained weights in $(STUDIES)/models/weights: their studies are left out"; fi

# What the NEON path is compiled for, without a linker.
ARM := aarch64-unknown-linux-gnu

.PHONY: lint
lint: build ## rustfmt, clippy, ruff, mypy, stubtest, import-linter
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	@if rustup target list --installed 2>/dev/null | grep -qx $(ARM); then \
		cargo check -p irminsul --target $(ARM) --quiet; \
	else echo "the NEON path is not compiled here: rustup target add $(ARM)"; fi
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest irminsul._core
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: ## rewrite the sources in the house format
	cargo fmt --all
	$(BIN)/ruff check --fix -q .
	$(BIN)/ruff format -q .

# Interpreters that `make wheels` builds for, where they are there; free-threaded ones end with a t.
WHEEL_VERSIONS ?= 3.11 3.12 3.13 3.14 3.14t
WHEEL_PYTHONS ?= $(foreach v,$(WHEEL_VERSIONS),python$(v) $(wildcard $(HOME)/.pyenv/versions/$(v).*/bin/python))
MATURIN_BUILD = $(BIN)/maturin build --release --compatibility $(WHEEL_TAG) --out dist

.PHONY: wheel
wheel: $(VENV)/.complete cuda ## build wheels with the CUDA library into dist/: this Python's, and one for all
	$(MATURIN_BUILD)
	$(MATURIN_BUILD) --features abi3

.PHONY: wheels
wheels: wheel ## wheels for every Python from 3.11 on that is installed
	@for python in $(WHEEL_PYTHONS); do \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  $(MATURIN_BUILD) --interpreter $$python; \
	done

.PHONY: lock
lock: $(VENV)/.complete ## resolve requirements/engine.in again
	$(UV) pip compile -q --python $(BIN)/python requirements/engine.in -o requirements/engine.txt

.PHONY: clean
clean: ## remove everything that was built here
	rm -rf $(VENV) $(CUDA_VENV) .hosts target build dist .demo $(CUDA_LIBRARY)
