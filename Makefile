# Works with GNU and BSD make. Needs nothing but make and a CPython >= 3.11 with its venv module.
#   make PYTHON=/path/to/python   builds .venv with that interpreter
#   make test ARGS="-k fork -x"   hands arguments on to pytest

PYTHON ?=
ARGS ?=
RUN = .venv/bin/python -m
READY = .venv/.installed
# Some pythons are packaged without ensurepip, and then they cannot make an environment.
SUITABLE = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11) or sys.implementation.name != 'cpython')

.PHONY: help format check quick test demo bench torture matrix clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

format: $(READY) ## format the code, and mend what ruff can mend
	$(RUN) ruff format satay tests recipes
	$(RUN) ruff check --fix satay tests recipes

check: $(READY) ## formatting, lint, types and floors
	$(RUN) ruff format --check satay tests recipes
	$(RUN) ruff check satay tests recipes
	$(RUN) mypy
	.venv/bin/lint-imports --no-logo

quick: $(READY) ## the tests that take a moment: not the slow ones, not torture
	$(RUN) pytest -n auto -m "not slow and not torture" --timeout 120 $(ARGS)

test: $(READY) ## every test but torture
	$(RUN) pytest -n auto -m "not torture" --timeout 120 $(ARGS)

demo: $(READY) ## fork a run, replay it, compare the two
	.venv/bin/python recipes/02_fork_replay_compare.py

bench: $(READY) ## measure the engine
	$(RUN) tests.benchmarks

torture: $(READY) ## the long crash and concurrency tests
	SATAY_TORTURE=long $(RUN) pytest -n auto -m torture --timeout 0 $(ARGS)

# One environment a version, the first interpreter found of each. A pyenv shim for a version that is not
# active is on PATH but does not run, so each candidate is tried.
matrix: ## the tests on every CPython >= 3.11 on PATH or in pyenv, one line each
	@mkdir -p .matrix; done=' '; failed=0; \
	for candidate in python3 python3.11 python3.12 python3.13 python3.14 python3.15 \
	    "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.*/bin/python3; do \
	  "$$candidate" -c "$(SUITABLE)" >/dev/null 2>&1 || continue; \
	  version=$$("$$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  case "$$done" in *" $$version "*) continue;; esac; done="$$done$$version "; \
	  place=.matrix/$$version; log=$$place.log; \
	  if { "$$place/bin/python" -m pip --version || "$$candidate" -m venv --clear "$$place"; } >"$$log" 2>&1 \
	    && "$$place/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[test]' >>"$$log" 2>&1 \
	    && "$$place/bin/python" -m pytest -n auto -m "not torture" --timeout 120 $(ARGS) >>"$$log" 2>&1; \
	  then echo "$$version: $$(tail -n 1 "$$log")"; \
	  else echo "$$version: failed, see $$log: $$(tail -n 1 "$$log")"; failed=1; fi; \
	done; \
	if [ "$$done" = ' ' ]; then echo 'no CPython >= 3.11 with venv was found' >&2; exit 1; fi; \
	exit $$failed

clean: ## remove caches, builds, .matrix and what bench installed; .venv stays
	rm -rf .matrix .bench-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find satay tests recipes -name __pycache__ -type d -prune -exec rm -rf {} +

# A .venv that works is kept and brought up to date; one that was left half made, or whose interpreter is gone, is
# made again. The stamp comes last, so that an interrupted install is repeated.
$(READY): pyproject.toml
	@if ! .venv/bin/python -m pip --version >/dev/null 2>&1 || ! .venv/bin/python -c "$(SUITABLE)" 2>/dev/null; then \
	  found=''; for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	    if "$$candidate" -c "$(SUITABLE)" >/dev/null 2>&1; then found="$$candidate"; break; fi; \
	    if [ "$$candidate" = "$(PYTHON)" ]; then break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo 'satay needs CPython >= 3.11 with its venv module, and none was found: install one, or name one with make PYTHON=/path/to/python' >&2; \
	    exit 1; \
	  fi; \
	  echo "making .venv with $$found"; "$$found" -m venv --clear .venv || exit 1; \
	fi
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@
