# Two commands for everybody: `make demo` and `make test`. Both make the virtual environment first.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help venv demo test check lint types layers pytest snapshots timer bench-search clean

help:
	@echo "make demo    optimise the packaged example on this machine, no key, no network"
	@echo "make test    everything that CI runs"
	@echo "make check   the fast part: ruff, mypy, import-linter"
	@echo "make timer   what the timer says of a kernel against itself; DEVICE=cuda:0 for a GPU"
	@echo "make bench-search  this search against published ones, simulated; PAIRS=100 is quick"

venv: $(STAMP)

# torch first and through pip alone, so that nothing below pulls another build of it
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/forge-tui run example:tiny-llm --headless --minutes 1

# the types are looked at while the first tests run
test: $(STAMP)
	@$(MAKE) --no-print-directory -j2 pytest check

check: lint types layers

lint: $(STAMP)
	$(BIN)/ruff check forge_tui tests

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

pytest: $(STAMP)
	$(BIN)/pytest

# after a deliberate change of what the screen shows
snapshots: $(STAMP)
	$(BIN)/pytest tests/tui --snapshot-update

timer: $(STAMP)
	$(BIN)/python tests/benchmarks/aa_timing.py --device $(or $(DEVICE),cpu)

bench-search: $(STAMP)
	cd tests && $(abspath $(BIN))/python -m benchmarks.search --pairs $(or $(PAIRS),1000)

clean:
	rm -rf $(VENV) .forge .pytest_cache .mypy_cache .ruff_cache .hypothesis
