# Every target builds .venv first; nothing else has to be installed but Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)

.PHONY: setup demo test e2e bench site lint format lock manifests clean
.DEFAULT_GOAL := demo

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
	$(BIN)/pytest -n auto

e2e: setup
	$(BIN)/python -m tests.e2e.controlplane.build
	$(BIN)/pytest tests/e2e -o addopts="--strict-markers --strict-config" -x -v

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
	$(UV) pip compile $(LOCK) --constraints requirements.txt --output-file $(IMAGE)/requirements.txt pyproject.toml
	$(UV) pip compile $(LOCK) --upgrade --output-file $(IMAGE)/build-requirements.txt $(IMAGE)/build-requirements.in

manifests: setup
	$(BIN)/python deploy/render.py

clean:
	rm -rf .venv .uv
