#!/usr/bin/env bash
# What has to be on the machine before anything can be installed: Python and Java.
#   scripts/tools.sh python    prints the interpreter to use
#   scripts/tools.sh java      says nothing when Java is there
# Otherwise it says exactly what to install and exits 1.
set -euo pipefail

MIN_PYTHON=11  # Python 3.11: what PySpark 4.3 and this project need
MIN_JAVA=17    # what Spark 4 needs

fail() {
    printf 'dafka-spark: %s\n' "$@" >&2
    exit 1
}

python_is_new() {
    "$1" -c "import sys; sys.exit(sys.version_info < (3, $MIN_PYTHON))" >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if python_is_new "$candidate"; then
            # Debian and Ubuntu ship Python without what venv needs.
            "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1 || fail \
                "$candidate cannot make virtual environments: its module venv is incomplete." \
                "Debian, Ubuntu: sudo apt-get install python3-venv"
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "Python 3.$MIN_PYTHON or newer is needed, and ${PYTHON:-python3} is $(
            "${PYTHON:-python3}" --version 2>/dev/null || echo 'not there')." \
        "Debian 12 or newer, Ubuntu 24.04 or newer: sudo apt-get install python3 python3-venv" \
        "macOS: brew install python@3.13" \
        "Or name one: make PYTHON=/path/to/python3 ..."
}

check_java() {
    local java=java found major
    if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java; fi
    found=$("$java" -version 2>&1) || found=""
    major=$(sed -nE '1,/version/s/.*version "(1\.)?([0-9]+).*/\2/p' <<<"$found")
    if [ -z "$major" ] || [ "$major" -lt "$MIN_JAVA" ]; then
        fail "Java $MIN_JAVA or newer is needed by Spark, and $java is ${major:+Java }${major:-not there}." \
            "Debian 12, Ubuntu: sudo apt-get install openjdk-17-jre-headless" \
            "Debian 13: sudo apt-get install openjdk-21-jre-headless" \
            "macOS: brew install openjdk@17" \
            "If it is installed elsewhere, set JAVA_HOME."
    fi
}

case "${1:-}" in
    python) find_python ;;
    java) check_java ;;
    *) fail "usage: scripts/tools.sh python|java" ;;
esac
