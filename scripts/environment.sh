#!/usr/bin/env bash
# Makes the virtual environment .venv with everything for the demo, the tests and the benchmarks,
# at the versions of constraints.txt and with the hashes of hashes/.  The Makefile calls it when
# those have changed.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(bash scripts/tools.sh python)
printf 'Making .venv with %s (%s); the first time this downloads about 500 MB.\n' \
    "$python" "$("$python" --version)" >&2

# An environment of another Python, or one whose making was interrupted, is made anew.
"$python" -m venv --clear .venv

pip() {
    .venv/bin/python -m pip --disable-pip-version-check "$@"
}
# What is not pinned, or has not the hash that it had when it was pinned, is not installed.  Build
# backends are pinned like everything else, so nothing is built in an isolated environment:
# hatchling builds this project, setuptools builds PySpark, which comes as source only.
pip install --quiet --require-hashes --requirement hashes/build.txt
pip install --quiet --require-hashes --no-build-isolation --requirement hashes/environment.txt
pip install --quiet --no-deps --no-build-isolation --editable .
# Tests start hundreds of Spark's Python processes.
.venv/bin/python -m dafka_spark.pyspark_bytecode >/dev/null
