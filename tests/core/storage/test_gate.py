"""The gate: together or alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dafka_core.storage.rw_lock import RWLock


def test_readers_are_inside_together() -> None:
    gate, together = RWLock(), threading.Barrier(3)

    def read() -> None:
        with gate.shared():
            together.wait(timeout=30)

    with ThreadPoolExecutor(3) as pool:
        for reader in [pool.submit(read) for _ in range(3)]:
            reader.result()


def test_one_alone_meets_nobody() -> None:
    gate = RWLock()
    reading, alone = [False] * 3, [False] * 2
    met: list[bool] = []

    def read(number: int) -> None:
        for _ in range(300):
            with gate.shared():
                reading[number] = True
                met.append(any(alone))
                reading[number] = False

    def change(number: int) -> None:
        for _ in range(100):
            with gate.exclusive():
                met.append(any(reading) or any(alone))
                alone[number] = True
                met.append(any(reading))
                alone[number] = False

    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(read, number) for number in range(3)]
        jobs += [pool.submit(change, number) for number in range(2)]
        for job in jobs:
            job.result()
    assert met == [False] * (3 * 300 + 2 * 2 * 100)


def test_an_error_inside_opens_the_gate_again() -> None:
    gate = RWLock()
    for enter in (gate.shared, gate.exclusive):
        with pytest.raises(KeyError), enter():
            raise KeyError
    with gate.exclusive():
        pass
    with gate.shared():
        pass
