# Every target makes the environment .venv by itself, and again when what it is made from changed.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo demo-live quick test test-all tests rewritten soak fuzz fuzz-kafka chaos powerloss mutants lint unit bench bench-quick bench-peers docs package audit hashes env java clean

BIN := .venv/bin
# Workers of Spark run the same Python as the driver.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# Tests start hundreds of Pythons.  Where this is set, each compiles all it imports anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: java env ## a year of flights through Dafka and Spark, with a kill and a restart in between
	@PYTHONPATH=jobs $(BIN)/python -m demo

demo-live: java env ## a pipeline to look at while a store is killed; RATE=n flights a second, SECONDS=n
	@PYTHONPATH=jobs:. $(BIN)/python -m demo.live $(if $(RATE),--rate $(RATE)) \
		$(if $(SECONDS),--seconds $(SECONDS))

quick: env ## the loop: format, lint, types, unit tests and 50 simulated seeds
	@$(MAKE) --no-print-directory -j2 lint unit

unit: env
	@$(BIN)/python -m pytest -q -n 2 tests/unit
	@$(BIN)/python -m tests.simulation.soak --seeds 50

test: java env ## format, lint, types, and the tests but those marked nightly
	@$(MAKE) --no-print-directory -j3 lint tests TESTS='-m "not nightly"'

test-all: java env ## format, lint, types, and all tests
	@$(MAKE) --no-print-directory -j3 lint tests

# A worker that crashes would be started again with the test that crashed it, for ever.
tests: .venv/spark-classes.jsa rewritten
	@$(BIN)/python -m pytest -n 4 --max-worker-restart 0 $(TESTS)

# pytest rewrites each file's assertions once and keeps them; its workers would do so at the same time.
rewritten: env
	@$(BIN)/python -m pytest -qq --collect-only >/dev/null || true

.venv/spark-classes.jsa: .venv/.made tests/spark/jvm.py
	@$(BIN)/python -m tests.spark.jvm

soak: env ## SEEDS=10000 worlds of the simulation with faults of all kinds, or SEED=7 step by step
	@$(BIN)/python -m tests.simulation.soak $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),10000))

fuzz: env ## octets that coverage guides, for all that reads octets from outside; SECONDS=n for each
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement hashes/fuzz.txt
	@$(BIN)/python -m tests.fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(if $(COUNT),--count $(COUNT)) \
		$(if $(SEED),--seed $(SEED))

fuzz-kafka: env ## COUNT=1000000 malformed requests for a gateway for Kafka's clients, by SEED=n
	@$(BIN)/python -m tests.integration.kafka.fuzz $(if $(COUNT),--count $(COUNT)) \
		$(if $(SEED),--seed $(SEED))

lint: env ## format, lint, types and which room imports which
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/mypy

bench: java env ## figures beside their references, as JSON lines and a table
	@$(BIN)/python -m benchmarks

bench-quick: java env ## one small figure a row beside the last release; fails if one is 15 % worse
	@$(BIN)/python -m benchmarks --quick

bench-peers: java env ## Dafka beside Kafka, NATS JetStream and C Dafka; ROWS="replay latency"; needs Maven and Go
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement hashes/peers.txt
	@$(BIN)/python -m benchmarks.peers $(if $(ROWS),--rows $(ROWS))

chaos: java env ## faults on real processes; SEED=n, ROUNDS=n and TABLE=n as you like (docs/testing.md)
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(TABLE),--table $(TABLE))

powerloss: env ## IMAGES=1000 disks that a power cut may leave, each opened and compared; or SEED=7 alone
	@$(BIN)/python -m tests.powerloss $(if $(IMAGES),--images $(IMAGES)) $(SEED)

mutants: env ## known defects put back one at a time: a test finds each; ONLY="names", JOBS=n
	@$(BIN)/python -m tests.mutants $(if $(ONLY),--only $(ONLY)) $(if $(JOBS),--jobs $(JOBS))

docs: env ## the pages as a site, in build/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "open build/docs/index.html"

package: env ## a wheel, a zip for spark-submit --py-files, and an SBOM, in dist/
	@$(BIN)/python -m scripts.package

audit: env ## known weaknesses in what the project is made of: asks the advisories of PyPI
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement hashes/audit.txt
	@$(BIN)/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

hashes: ## hashes/, anew, after a change to constraints.txt or to what pyproject.toml depends on
	@"$$(bash scripts/tools.sh python)" scripts/hashes.py

env: .venv/.made ## the environment .venv alone

.venv/.made: pyproject.toml constraints.txt $(wildcard hashes/*.txt) scripts/environment.sh
	@bash scripts/environment.sh
	@touch $@

java: ## checks that Java 17 or newer is there
	@bash scripts/tools.sh java

clean: ## remove what the other targets made
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log demo-output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
