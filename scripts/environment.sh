#!/usr/bin/env bash
# Makes the virtual environment .venv with everything for the demo, the tests and the benchmarks,
# at the versions of constraints.txt.  The Makefile calls it when those have changed.
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
# Build backends are pinned like everything else, so nothing is built in an isolated environment:
# hatchling builds this project, setuptools builds PySpark, which comes as source only.
pip install --quiet --constraint constraints.txt hatchling editables setuptools
pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[demo,docs,notebooks,test]'
