"""``make fuzz``: each target for some seconds, with bytes guided by coverage."""

import argparse
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS

MAX_BYTES: Final = 4_096
HANG_S: Final = 10
MAX_RSS_MB: Final = 1_024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=[*TARGETS])
    parser.add_argument("--seconds", type=int, default=15, help="for each (default: 15)")
    parser.add_argument("--count", type=int, help="number of inputs for each, instead of a time")
    parser.add_argument("--seed", type=int, default=random.randrange(1, 2**31))
    parser.add_argument("--keep", action="store_true", help="put what was found into the corpus")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    limit = f"-max_total_time={arguments.seconds}"
    if arguments.count:
        limit = f"-runs={arguments.count}"
    failed = 0
    for target in arguments.target:
        with tempfile.TemporaryDirectory(prefix="dafka-fuzz-") as directory:
            failed += not _run(target, Path(directory), f"-seed={arguments.seed}", limit)
            if arguments.keep:
                _keep(target, Path(directory))
    return min(failed, 1)


def _run(target: str, directory: Path, *limits: str) -> bool:
    """Fuzz a target, beginning with its corpus; return True if it passed."""
    for number, entry in enumerate(corpus.read(target)):
        (directory / f"{number}").write_bytes(entry)
    flags = f"-max_len={MAX_BYTES} -timeout={HANG_S} -rss_limit_mb={MAX_RSS_MB}".split()
    broke = Path(f"fuzz-{target}.octets").absolute()
    flags += ["-print_final_stats=1", f"-exact_artifact_path={broke}"]
    done = _guided(target, str(directory), *flags, *limits)
    runs = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    memory = re.search(r"peak_rss_mb:\s+(\d+)", done.stderr)
    if done.returncode or not runs or not memory:
        print(f"{target}: FAILED with the octets in {broke}\n{done.stdout}{done.stderr}")
        return False
    count = len(list(directory.iterdir()))
    print(f"{target}: {int(runs[1]):,} stood, {memory[1]} MB, corpus {count}", flush=True)
    return True


def _guided(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.guided", *flags]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _keep(target: str, found: Path) -> None:
    entries = {each.read_bytes() for each in found.iterdir()}
    print(f"{target}: {corpus.write(target, corpus.least(TARGETS[target], entries))} kept")


if __name__ == "__main__":
    sys.exit(main())
