# Every target stands on its own: it makes the virtual environment, installs what it needs, and runs.
# A machine needs Python 3.11 to 3.13 and make. Stamps in .venv remember what is installed, and
# pyproject.toml, this file or the native sources being newer than a stamp installs again.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
NATIVE := hatch_build.py $(wildcard wayfare/native/*)

.PHONY: help demo test test-all test-core test-pure test-asan test-gpu test-long lint bench docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter of a new environment (now: $(PYTHON))."

demo: $(VENV)/.stamp-onnx ## Train three small networks, show each stage of it, and ship each as a file
	@$(PY) -m wayfare demo

test: lint ## Check style and types, then run the tests, and a sample of those made by the hundred
	$(PY) -m pytest -n auto --dist worksteal -m "not long"

test-all: lint ## The same, and every test
	$(PY) -m pytest -n auto --dist worksteal

# What depends on the interpreter most: graphs, batching (frames, bytecode, greenlets), compiled functions (guards).
CORE := tests/autograd tests/batch tests/compiler tests/api/functions tests/see/graph tests/test_faults.py tests/test_fork.py

test-core: $(VENV)/.stamp-test ## The core of `make test`, for other Pythons: make test-core VENV=.venv-3.13 PYTHON=python3.13
	$(PY) -m pytest -n auto --dist worksteal -m "not long" $(CORE)

test-pure: $(VENV)/.stamp-test ## The same without the native module, as on a machine that has no C compiler
	WAYFARE_NATIVE=0 $(PY) -m pytest -n auto --dist worksteal -m "not long" $(CORE)

# Its own folder: the module under AddressSanitizer loads only into a Python that has the sanitizer before it.
test-asan: $(VENV)/.stamp-test ## The tests of graphs and of the native module, under AddressSanitizer (gcc)
	$(PY) tools/test_asan.py tests/autograd tests/test_native.py tests/gpu/test_native_launches.py tests/batch/test_semantics.py tests/batch/test_schedule.py tests/batch/test_writes.py

test-gpu: $(VENV)/.stamp-test ## The tests of devices on a real GPU, where CuPy finds one (installs CuPy)
	$(PIP) install --editable '.[cuda]'
	WAYFARE_TEST_GPU=1 $(PY) -m pytest -q tests/gpu

test-long: $(VENV)/.stamp-test ## What `make test` leaves to `make test-all`
	$(PY) -m pytest -n auto --dist worksteal -m long

lint: $(VENV)/.stamp-test ## Check style (ruff) and types (mypy --strict)
	$(PY) -m ruff check .
	$(PY) -m mypy --strict wayfare

bench: $(VENV)/.stamp-referee ## Run every suite of benchmarks beside PyTorch (installs PyTorch)
	$(PY) -m benchmarks eager
	$(PY) -m benchmarks kernels
	$(PY) -m benchmarks library
	$(PY) -m benchmarks compile
	$(PY) -m benchmarks batching
	$(PY) -m benchmarks ship

docs: $(VENV)/.stamp-base ## Write docs/api and docs/onnx_ops.md, and docs/coverage.md if PyTorch is there
	$(PY) tools/make_api_docs.py
	$(PY) tools/make_onnx_ops.py
	@if $(PY) -c "import expecttest, torch" 2>/dev/null; then \
		echo "$(PY) -m tests.oracle.report"; $(PY) -m tests.oracle.report; \
	else \
		echo "docs/coverage.md left as it is: PyTorch is not installed in $(VENV) (make $(VENV)/.stamp-referee)."; \
	fi

clean: ## Remove the environment, the caches and build results
	rm -rf $(VENV) wayfare/core/_native*.so build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
		echo "Wayfare needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is" \
			"$$($(PYTHON) --version 2>/dev/null || echo missing). Name another one: make PYTHON=python3.12 ..." >&2; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-base: $(VENV)/.stamp-venv pyproject.toml Makefile $(NATIVE)
	$(PIP) install --editable .
	@touch $@

$(VENV)/.stamp-onnx: $(VENV)/.stamp-venv pyproject.toml Makefile $(NATIVE)
	$(PIP) install --editable ".[onnx]"
	@touch $@ $(VENV)/.stamp-base

$(VENV)/.stamp-test: $(VENV)/.stamp-venv pyproject.toml Makefile $(NATIVE)
	$(PIP) install --editable ".[test]"
	@touch $@ $(VENV)/.stamp-base $(VENV)/.stamp-onnx

$(VENV)/.stamp-referee: $(VENV)/.stamp-venv pyproject.toml Makefile $(NATIVE)
	$(PIP) install --editable ".[test,referee]"
	@touch $@ $(VENV)/.stamp-base $(VENV)/.stamp-onnx $(VENV)/.stamp-test
