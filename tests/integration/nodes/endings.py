"""Programs that publish ten records and end in one of many ways.

Arguments: a tower, the way, and the producer's ``close_timeout_s``.
"""

import atexit
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable

from dafka_core import Producer
from dafka_core.nodes import node

COUNT = 10

tower, how, timeout_s = sys.argv[1], sys.argv[2], float(sys.argv[3])


def publish() -> Producer:
    producer = Producer("t", tower=tower, close_timeout_s=timeout_s)
    producer.publish_many([b"x"] * COUNT)
    return producer


def dropped() -> None:
    publish()


def exits(code: object) -> None:
    with publish():
        sys.exit(code)  # type: ignore[arg-type]


def fails() -> None:
    with publish():
        raise OSError("the program's own")


def in_child(method: str, work: Callable[[], object]) -> None:
    child = multiprocessing.get_context(method).Process(target=work)  # type: ignore[attr-defined]
    child.start()
    child.join()
    sys.exit(child.exitcode)


def left_open() -> None:
    kept.append(publish())


def fails_with_open() -> None:
    left_open()
    raise OSError("the program's own")


def forks_with_open() -> None:
    left_open()
    if os.fork() == 0:
        sys.exit(0)  # the interpreter's end, in the child
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))


def closing_in_daemon() -> None:
    producer = publish()
    flush = producer.flush

    def flush_at_the_end(timeout_s: float) -> None:
        node._exiting.wait()
        flush(timeout_s)

    producer.flush = flush_at_the_end  # type: ignore[method-assign]
    threading.Thread(target=producer.close, daemon=True).start()
    while producer.is_open:
        time.sleep(0.001)


def several() -> None:
    for _ in range(3):
        left_open()


def with_others() -> None:
    left_open()
    atexit.register(print, "an exit function")
    kept.append(open(os.devnull, "w"))  # noqa: PTH123, SIM115
    print("unflushed", end=" ")


kept: list[object] = []
WAYS: dict[str, Callable[[], object]] = {
    "open": left_open,
    "dropped": dropped,
    "exit-0": lambda: exits(0),
    "exit-none": lambda: exits(None),
    "exit-3": lambda: exits(3),
    "error": fails,
    "error-open": fails_with_open,
    "fork": forks_with_open,
    "several": several,
    "daemon": closing_in_daemon,
    "others": with_others,
    "child-fork": lambda: in_child("fork", left_open),
    "child-spawn": lambda: in_child("spawn", left_open),
    "child-fork-error": lambda: in_child("fork", fails_with_open),
}

if __name__ == "__main__":
    WAYS[how]()
