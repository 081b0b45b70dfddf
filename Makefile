# Every target builds .venv first; nothing else has to be installed but Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)

.PHONY: setup demo test e2e e2e-all nightly bench site lint format lock manifests release clean
.DEFAULT_GOAL := demo
# Python keeps compiled modules, also where the environment forbids it: else each command that a test starts compiles
# its sources again.
export PYTHONDONTWRITEBYTECODE =

setup: .venv/ready

.uv/bin/uv:
	$(PYTHON) -m venv .uv
	.uv/bin/pip install --quiet --disable-pip-version-check uv

# The lock pins every package by hash; `make lock` renews it.
.venv/ready: requirements.txt pyproject.toml | $(UV)
	$(UV) venv --quiet --allow-existing --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $@

demo: setup
	$(BIN)/stowage demo

test: setup
	$(BIN)/pytest -n auto --dist worksteal

# The core: placing, bind, preemption, the evictor, gangs, DRA, failover, a broken kind, and what is installed. The nightly run does all,
# and more kinds of jobs.
E2E_CORE := rush bind waiting preemption evictor gangs job_kinds native_gangs dra failover broken_kind chart install deploy
# They mostly wait, so two files at a time.
E2E := $(BIN)/pytest -o addopts="--strict-markers --strict-config" -x -v -n 2 --dist loadfile

# `make e2e K8S=1.34` takes another release of Kubernetes than the newest.
e2e: setup
	$(BIN)/python -m tests.e2e.controlplane.build
	$(E2E) -m "not nightly" $(E2E_CORE:%=tests/e2e/test_%.py)

# Every release, one after the other: `make e2e-all`, or one part at a time, such as `make e2e-build-1.34`, then
# `make e2e-1.34`. Each takes 20 minutes at most on two cores.
e2e-all: $(patsubst tests/e2e/controlplane/modules/kubernetes-%,e2e-%,$(sort $(wildcard tests/e2e/controlplane/modules/kubernetes-*)))

e2e-1.%: e2e-build-1.%
	$(MAKE) e2e K8S=1.$*

e2e-build-1.%: setup
	K8S=1.$* $(BIN)/python -m tests.e2e.controlplane.build

# Everything: `make nightly` or one of its parts, such as `make nightly-packing`.
NIGHTLY := packing extender rest docs e2e-a e2e-b
E2E_ALL := $(sort $(wildcard tests/e2e/test_*.py))
E2E_A := $(wildcard tests/e2e/test_[a-h]*.py)

nightly: $(NIGHTLY:%=nightly-%)

nightly-%: export STOWAGE_TESTS = nightly

nightly-packing: setup
	$(BIN)/pytest -n auto tests/packing tests/bench

nightly-extender: setup
	$(BIN)/pytest -n auto tests/extender

nightly-rest: setup
	$(BIN)/pytest -n auto tests/cases tests/contract tests/hostile tests/peers

nightly-docs: setup
	$(BIN)/pytest -n auto tests/docs $(wildcard tests/test_*.py)

nightly-e2e-a: setup
	$(BIN)/python -m tests.e2e.controlplane.build
	$(E2E) $(E2E_A)

nightly-e2e-b: setup
	$(BIN)/python -m tests.e2e.controlplane.build
	$(E2E) $(filter-out $(E2E_A),$(E2E_ALL))

bench: setup
	$(BIN)/python -m bench

# From README, docs/ and the pages beside them; a warning is an error.
site: setup
	$(BIN)/python docs/site/build.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

LOCK := --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11
IMAGE := deploy/image

# requirements.txt has everything; the image has the same versions of what it needs to run and to be built.
lock: | $(UV)
	$(UV) pip compile $(LOCK) --extra dev --upgrade --output-file requirements.txt pyproject.toml
	$(UV) pip compile $(LOCK) --extra tracing --constraints requirements.txt --output-file $(IMAGE)/requirements.txt pyproject.toml
	$(UV) pip compile $(LOCK) --upgrade --output-file $(IMAGE)/build-requirements.txt $(IMAGE)/build-requirements.in

manifests: setup
	$(BIN)/python deploy/render.py

# Wheel, source archive, chart, plugin for krew, image and bill of materials, without a container engine (deploy/image/README.md).
release: setup
	rm -rf dist
	$(BIN)/python -m tests.e2e.controlplane.build helm
	$(BIN)/python -m deploy.release dist
	STOWAGE_RELEASE=dist $(E2E) tests/e2e/test_image.py

clean:
	rm -rf .venv .uv
