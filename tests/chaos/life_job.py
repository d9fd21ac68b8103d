"""A life of a producer in its own program: ``python -m tests.chaos.life_job NAME ...``.

It prints a JSON line for every fact: its first offset, acknowledgements, being fenced. It publishes
until its standard input ends.
"""

import json
import select
import sys
import time
from typing import Any

from dafka_core import Producer
from dafka_core.errors import MissingStoresError, NoStoreError, ProducerFencedError
from dafka_core.model.timestamps import WallClock
from dafka_core.nodes import producer as producer_module

BURST_COUNT = 7
PAUSE_S = 0.02
FLUSH_S = 90.0

TEN_YEARS_S = 10 * 365 * 86_400

FENCED = 3  # the exit code of a fenced life


def value(name: str, offset: int) -> str:
    """Return the value of a life at an offset; other lives write other values."""
    return f"{name}:{offset}"


def clock(skew_s: float) -> WallClock:
    """A clock that is wrong, and for a second wrong by ten years."""
    began_s = time.monotonic()

    def wall_us() -> int:
        jumped = 1 < time.monotonic() - began_s < 2
        return int((time.time() + skew_s + jumped * TEN_YEARS_S) * 1e6)

    return WallClock(wall_us)


def main(name: str, tower: str, topic: str, address: str, acks: str, skew_s: str) -> int:
    """Publish until the input ends, or until fenced."""
    vars(producer_module)["WallClock"] = lambda: clock(float(skew_s))
    producer = None
    while producer is None:
        try:
            producer = Producer(
                topic, tower=tower, address=address, acks=int(acks), resume_timeout_s=3
            )
        except (MissingStoresError, NoStoreError) as error:
            _say(waits=str(error))
    try:
        with producer:
            _say(begins=producer.next_offset)
            while not select.select([sys.stdin], [], [], 0)[0]:
                start = producer.next_offset
                offsets = range(start, start + BURST_COUNT)
                producer.publish_many([value(name, offset).encode() for offset in offsets])
                producer.flush(FLUSH_S)
                _say(acknowledged=[start, start + BURST_COUNT])
                time.sleep(PAUSE_S)
    except ProducerFencedError as error:
        _say(fenced=[error.start, error.end], number=error.number)
        return FENCED
    return 0


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
