# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
# Another set of versions: make test CONSTRAINTS=constraints-latest.txt VENV=.venv-latest
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
DEMO := runs/dates_rnn

.PHONY: demo test quick soak lint docs clean

# The environment is rebuilt whenever its inputs change.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	@HF_HUB_OFFLINE=1 $(BIN)/kit train dates_rnn --output $(DEMO) --resume
	@HF_HUB_OFFLINE=1 $(BIN)/python recipes/scripts/demo.py $(DEMO)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

# Each worker takes tests that stand together, so that what they share is made once.
test: lint
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m 'not soak' -n 2 --dist worksteal

# While you work: neither lint nor the tests that are marked slow.
quick: $(VENV)/.installed
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m 'not soak and not slow' -n 2 --dist worksteal

# Longer proofs: many kills, long fuzzing.
soak: $(VENV)/.installed
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m soak

# The documentation as a site in site/, without the network. Warnings, such as broken links, are errors.
docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict
	@! grep -rlE '<(script|link)[^>]*(src|href)="(https?:)?//' site --include='*.html' || (echo "these pages load files from elsewhere"; exit 1)

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[docs]'
	touch $@

clean:
	rm -rf site $(VENV) .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
