# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONFIG ?= configs/laptop.toml
MINUTES ?= 10

.PHONY: run test soak install clean

run: install
	$(BIN)/shoal run $(CONFIG)

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	-$(BIN)/python -m tests.support.servers.programs nginx anvil bwrap  # tests that need a missing one are skipped
	-$(BIN)/python -m tests.support.browser  # Chromium, for the pages: as root, else those tests are skipped
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -m alone

soak: install  # ten minutes of storms; SEED=N repeats one
	$(BIN)/python -m tests.faults.storm --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "shoal needs Python 3.11 or newer, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache
