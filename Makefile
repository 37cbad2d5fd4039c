# What a fresh machine needs: `make demo` (the main job) and `make test` (the suite). Both set everything up.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO_DATA := demo-data

.PHONY: demo test test-unit test-real lint bench chaos mutants evidence clean

demo: $(VENV)/.train $(DEMO_DATA)/test/test.npz
	@$(BIN)/python tools/demo.py

$(DEMO_DATA)/test/test.npz: entrypoints/prepare_digits.py | $(VENV)/.train
	@$(BIN)/python entrypoints/prepare_digits.py --out $(DEMO_DATA)

test: lint $(VENV)/.train
	$(BIN)/python -m pytest -m "unit or endpoint or process" --numprocesses auto --dist loadfile --no-loadscope-reorder

test-unit: $(VENV)/.dev $(VENV)/.train
	$(BIN)/python -m pytest -m unit --numprocesses auto --dist loadfile --no-loadscope-reorder

test-real: $(VENV)/.dev $(VENV)/.train
	$(BIN)/python tools/real_components.py
	$(BIN)/python -m pytest -m real --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/import_cycles.py
	$(BIN)/python tools/check_words.py

bench: $(VENV)/.dev $(VENV)/.train
	$(BIN)/python benchmarks/run_all.py

chaos: $(VENV)/.dev $(VENV)/.train
	$(BIN)/python -m pytest -m chaos --timeout 3600

# How many of 60 seeded mistakes the tests catch: an hour and more on two cores.
mutants: $(VENV)/.dev $(VENV)/.train
	$(BIN)/python tools/mutants.py --seed 1 --out build/mutants.json

# What an issue wants shown: ISSUE=K, and REAL=1 for what takes minutes or third-party components.
evidence: $(VENV)/.dev $(VENV)/.train
	$(BIN)/python tools/evidence.py $(ISSUE) $(if $(REAL),--real) $(if $(WORKERS),--workers $(WORKERS))

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The package itself, the way a user gets it, but editable.
$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) -e '.[dev,data,functions]'
	@touch $@

# What the demo and the training tests train with. torch is pinned: a looser pin may fetch gigabytes of CUDA.
$(VENV)/.train: $(VENV)/.core
	$(PIP) torch numpy scikit-learn
	@touch $@

clean:
	rm -rf $(VENV) $(DEMO_DATA) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
