# The steps of the project, the same for a person and for .ci/run.
# `make run` and `make test` install first when needed; nothing outside this folder is written.

PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
WORKERS ?= 2

BIN := .venv/bin
INSTALLED := .venv/.installed

# One thread for numerical libraries (two on a busy machine are slower), and no look at the network.
OFFLINE := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1

.DEFAULT_GOAL := help
.PHONY: help install run test test-long check bench bench-startup bench-eval bench-recipes bench-overhead prove-banking77 histories screenshots faults-spine clean

help:  ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 22

$(INSTALLED): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
	  { rm -rf .venv; echo "make: '$(PYTHON) -m venv' failed: it needs Python 3.11 to 3.13 with venv (Debian: python3-venv); name another with PYTHON=..." >&2; exit 1; }
	@echo "Installing into .venv: two to four minutes the first time."
	$(BIN)/pip install -q --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev]'
	@$(BIN)/pip install -q --disable-pip-version-check -c $(CONSTRAINTS) -e '.[gym]' >/dev/null 2>&1 || \
	  echo "Left out: reasoning-gym, which compiles and needs gcc. Only 'make bench-recipes' and a few tests want it."
	@touch $@

install: $(INSTALLED)  ## environment in .venv, with versions from constraints.txt
	@echo "Installed in .venv. Next: 'make run' shows two deliveries, 'make test' runs the tests, $(BIN)/delivery-plane --help lists the commands."

run: $(INSTALLED)  ## the demo: one delivery that is accepted, one that trains but does not learn
	$(BIN)/delivery-plane demo

test: $(INSTALLED)  ## the tests
	$(OFFLINE) $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10 -m 'not long'

test-long: $(INSTALLED)  ## what takes minutes: full disks, restored ledgers, pinned versions, felled trees
	$(OFFLINE) $(BIN)/pytest -n $(WORKERS) --dist loadfile --durations=10 -m long

check: $(INSTALLED)  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: bench-startup bench-eval  ## the benchmarks of minutes; each ends with one JSON object and fails when it misses its goal

bench-startup: $(INSTALLED)  ## start of the command line against its two libraries alone
	$(BIN)/python benchmarks/help_startup.py

bench-eval: $(INSTALLED)  ## evaluation against plain lm-eval, cold and cached (about two minutes)
	$(OFFLINE) $(BIN)/python benchmarks/evaluation.py

bench-recipes: $(INSTALLED)  ## SFT, DPO and GRPO on the embedded base, three seeds each (about twenty minutes); goes on where it broke off
	$(OFFLINE) $(BIN)/python benchmarks/recipes.py

bench-overhead: $(INSTALLED)  ## a governed job against the same bare one, twelve pairs (most of an hour); goes on where it broke off
	$(OFFLINE) $(BIN)/python benchmarks/overhead.py

prove-banking77: $(INSTALLED)  ## six deliveries on BANKING77 (DELIVERY_PLANE_DATA), most of an hour; goes on where it broke off
	$(OFFLINE) $(BIN)/python benchmarks/banking77_declared.py

histories: $(INSTALLED)  ## record the workflow histories that the tests replay, under this release's number
	PYTHONPATH=tests $(BIN)/python tests/record_histories.py $$($(BIN)/python -c 'import delivery_plane as d; print(d.__version__)')

screenshots: $(INSTALLED)  ## draw the pictures in docs/ anew (needs chromium)
	$(OFFLINE) $(BIN)/python docs/screenshots.py

faults-spine: $(INSTALLED)  ## kill processes at every stage of real deliveries, 150 times or more; goes on where it stopped (about half an hour)
	$(OFFLINE) PYTHONPATH=tests $(BIN)/python tests/faults_spine.py

clean:  ## remove what is generated; .venv and .delivery-plane stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
