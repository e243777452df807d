# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
# The version named here has a small CPU build on machines that offer one;
# elsewhere the normal build comes. `make demo TORCH=torch` takes the newest.
TORCH  ?= torch==2.13.0
EXTRAS ?= lab,compact,report,dev

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed-$(TORCH)

.PHONY: help demo test lint types unit browser test-slow bench docs clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "dessilbi needs Python >= 3.11; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q --upgrade '$(TORCH)'
	$(BIN)/python -m pip install -q -e '.[$(EXTRAS)]'
	@rm -f $(VENV)/.installed-* && touch '$@'

demo: $(STAMP) ## install and watch a sparse twin grow on embedded data
	$(BIN)/dessilbi demo

test: $(STAMP) lint types unit ## install, lint, type-check and test

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# The report is tested in a real browser. Where there is none these tests are skipped and say so; with
# DESSILBI_SYSTEM_TESTS=1, as CI has it, Debian's is installed first. Nothing is installed unasked.
browser:
	@test "$$DESSILBI_SYSTEM_TESTS" != 1 || command -v chromium >/dev/null \
		|| command -v chromium-browser >/dev/null \
		|| command -v google-chrome >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& echo "installing chromium for the tests of the report" \
		&& timeout 240 sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends chromium' >/dev/null 2>&1 \
		|| echo "no browser: the browser tests of the report are skipped"; }

unit: $(STAMP) browser
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-slow: $(STAMP) ## the longer checks
	$(BIN)/python -m pytest -q -m slow

bench: $(STAMP) ## time and memory of one optimizer step
	$(BIN)/python benchmarks/step.py

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
