"""A child process of the tests: writes a log until it is killed, telling what is on disk.

``appender.py DIRECTORY SEED`` prints the end of the partition after each append that returned.
"""

from __future__ import annotations

import random
import sys

from dafka_core.records import Run
from dafka_core.storage import Log

TOPIC, PARTITION = "t", "P"


def value(offset: int) -> bytes:
    """The record at an offset: of a length of its own, and nothing another one has."""
    return b"%d," % offset * (1 + offset * 7919 % 97)


def main() -> None:
    directory, seed = sys.argv[1:]
    chance = random.Random(int(seed))
    with Log(directory, map_size_bytes=1 << 20) as log:
        end = log.end(TOPIC, PARTITION)
        print(end, flush=True)
        while True:
            runs = []
            for _ in range(chance.randint(1, 3)):
                count = chance.choice((1, 1, 1, 2, 10, 200, 3000))
                values = [value(offset) for offset in range(end, end + count)]
                runs.append(Run.of(TOPIC, PARTITION, end, values))
                end += count
            log.append(runs)
            if chance.random() < 0.05:
                log.trim(TOPIC, PARTITION, end - min(end, 20_000))
            print(end, flush=True)


if __name__ == "__main__":
    main()
