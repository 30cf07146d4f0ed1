# `make` alone lists the targets. Everything is installed into .venv; nothing outside the checkout
# is written to.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help quickstart setup test test-all test-case test-fast test-oldest matrix bench bench-compare guides returnn defects catalogue docs linkcheck lint format wheel dist check-wheel release-check clean distclean

BACKENDS := tensorflow jax torch
BACKEND ?= jax
WORKERS ?= 2
PART ?=
MINUTES ?=
ALSO ?=
BENCHMARKS ?= dense verbs
ARGS ?=
A ?= HEAD
B ?= .

VENV := .venv
CONSTRAINTS := constraints.txt
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
STAMPS := $(VENV)/.stamps
ALL_EXTRAS := tensorflow+jax+torch+test+lint+guides+docs+dist

empty :=
space := $(empty) $(empty)
comma := ,

# BACKEND is checked where it is used, and wherever it was given on the command line.
ifneq ($(filter test-case,$(MAKECMDGOALS)),)
ifeq ($(NAME),)
$(error NAME must be the class of an optimizer. Example: make test-case NAME=Momentum)
endif
endif
ifneq ($(filter quickstart test-fast test-oldest bench bench-compare check-wheel release-check,$(MAKECMDGOALS))$(filter command,$(origin BACKEND)),)
ifeq ($(filter $(BACKENDS),$(subst $(space),+,$(BACKEND))),)
$(error BACKEND must be one of: $(BACKENDS); got "$(BACKEND)". Example: make quickstart BACKEND=jax)
endif
endif

help: ## List the targets
	@echo 'Usage: make TARGET [BACKEND=tensorflow|jax|torch]'
	@echo
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  BACKEND is $(BACKEND) if not given. Also: PYTHON=python3.11 (for a new .venv),'
	@echo '  WORKERS=2 (test processes), ARGS="..." (passed on to quickstart.py or pytest).'

quickstart: $(STAMPS)/$(BACKEND)+guides ## Install with one BACKEND and train on real data
	KERAS_BACKEND=$(BACKEND) TF_CPP_MIN_LOG_LEVEL=$${TF_CPP_MIN_LOG_LEVEL:-2} $(PY) guides/quickstart.py $(ARGS)

setup: $(STAMPS)/$(ALL_EXTRAS) ## Install with the three backends and all tools

test: setup ## Lint, distribution, documentation, the suite on each backend, as in CI; ALSO=guides before a release
	@$(PY) .ci/check.py --workers $(WORKERS) $(MINUTES:%=--minutes %) lint shell dist docs $(BACKENDS) $(ALSO) -- $(ARGS)

test-all: setup ## Every optimizer in every test (hours), and the matrix; PART=1..12 for a part
	@$(PY) .ci/check.py --workers $(WORKERS) $(PART:%=--part %) lint $(BACKENDS) -- --exhaustive $(ARGS)

test-case: setup ## Every test of the optimizer NAME on each backend, and what to do where one fails
	@$(PY) .ci/check.py --workers $(WORKERS) $(BACKENDS) -- --optimizer $(NAME) $(ARGS)

matrix: | $(PY) ## What earlier tests say of optimizers and invariants; all in build/matrix.md
	@$(PY) .ci/matrix.py

test-fast: setup ## The tests not marked slow, on one BACKEND
	@$(PY) .ci/check.py --workers $(WORKERS) --fast $(BACKEND) -- $(ARGS)

test-oldest: ## The tests on one BACKEND with the oldest versions of Keras and its backends, in a .venv of their own
	@$(MAKE) --no-print-directory VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt .test-alone

.PHONY: .test-alone
.test-alone: $(STAMPS)/tensorflow+jax+torch+test
	@$(PY) .ci/check.py --workers $(WORKERS) $(BACKEND) -- $(ARGS)

guides: setup ## Run all guides, spread over the backends; ARGS="GUIDE..." for some
	@$(PY) -m integration.guides $(ARGS)

returnn: setup ## RETURNN, installed into .venv, trains with optimizers that its configuration names
	@$(PIP) install --quiet --no-deps --constraint constraints.txt returnn dm-tree
	@KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=$${TF_CPP_MIN_LOG_LEVEL:-2} $(PY) -m integration.returnn_training

bench: setup ## Step times compared with peers', on one BACKEND; BENCHMARKS="training costs second_order modern embedding options solvers exchange state tables" for more
	@for name in $(BENCHMARKS); do \
	  KERAS_BACKEND=$(BACKEND) TF_CPP_MIN_LOG_LEVEL=$${TF_CPP_MIN_LOG_LEVEL:-2} \
	  $(PY) -m integration.benchmarks.$$name $(ARGS) || exit 1; \
	done

bench-compare: setup ## What became slower from A to B, revisions or "." (A=v0.1 B=.), by BENCHMARKS; ARGS="--repeats 5"
	@KERAS_BACKEND=$(BACKEND) TF_CPP_MIN_LOG_LEVEL=$${TF_CPP_MIN_LOG_LEVEL:-2} \
	  $(PY) -m integration.benchmarks.compare $(A) $(B) --benchmarks $(BENCHMARKS) $(ARGS)

defects: setup ## What stock Keras gets wrong on each backend, and what becomes of it here
	@$(PY) -m integration.stock_defects --all $(ARGS)

catalogue: setup ## Write the page of all optimizers, guides/optimizers.md
	KERAS_BACKEND=torch $(PY) -m integration.catalogue guides/optimizers.md

docs: setup ## Build the documentation into build/docs/, and open it in Chromium where there is one
	@$(PY) .ci/check.py docs

linkcheck: setup ## Follow the links of the documentation into the Internet
	@KERAS_BACKEND=jax TF_CPP_MIN_LOG_LEVEL=2 $(PY) -m sphinx -q -b linkcheck docs build/linkcheck

lint: $(STAMPS)/lint ## Check style, types, imports, spelling and English
	@$(PY) .ci/check.py lint

format: $(STAMPS)/lint ## Format the code and mend what ruff can mend
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

wheel: | $(PY) ## Build the wheel into dist/
	@rm -rf dist
	$(PIP) wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

dist: setup ## Build sdist and wheel into dist/ and check both
	@$(PY) .ci/check_dist.py

release-check: setup ## Before a release: version, changelog, citation, documentation, sdist, wheel, an empty environment
	@$(PY) .ci/check_release.py --tag
	@$(PY) .ci/check.py docs dist
	@$(PY) .ci/check_wheel.py $(BACKEND)

check-wheel: wheel ## Install the wheel with one BACKEND in an empty environment and use it
	@$(PY) .ci/check_wheel.py $(BACKEND)

clean: ## Remove what was built and cached
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## clean, and remove .venv and those of other versions
	rm -rf $(VENV) .venv-*

# One stamp a set of extras (joined by +): nothing is installed again unless what is to be installed
# may have changed. torch comes first and alone: see constraints.txt. The largest set contains the
# others.
$(STAMPS)/%: pyproject.toml $(CONSTRAINTS) | $(PY)
	@echo 'Installing $(subst +,$(comma) ,$*) into $(VENV) (may take some minutes) ...'
	$(if $(findstring torch,$*),$(PIP) install --quiet -c $(CONSTRAINTS) torch)
	$(PIP) install --quiet -c $(CONSTRAINTS) -e '.[$(subst +,$(comma),$*)]'
	@mkdir -p $(STAMPS)
	@touch $@ $(if $(filter $(ALL_EXTRAS),$*),$(STAMPS)/lint $(BACKENDS:%=$(STAMPS)/%+guides))

# A candidate must run and be able to create environments: a command may exist without doing so.
$(PY):
	@python='$(PYTHON)'; \
	if [ -z "$$python" ]; then \
	  for candidate in python3.11 python3.12 python3.10 python3.13 python3; do \
	    if $$candidate -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; \
	    then python=$$candidate; break; fi; \
	  done; \
	fi; \
	if [ -z "$$python" ]; then \
	  echo 'No Python of version 3.10 or later with its venv module was found on the PATH.' >&2; \
	  echo 'Install one, or name it: make PYTHON=/path/to/python3 TARGET' >&2; \
	  exit 1; \
	fi; \
	if ! $$python -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then \
	  echo "PYTHON=$$python does not run, or is older than 3.10." >&2; exit 1; \
	fi; \
	echo "Creating $(VENV) with $$($$python --version) ..."; \
	$$python -m venv --clear $(VENV)
