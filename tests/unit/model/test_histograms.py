"""Durations are counted in fixed buckets."""

import threading

from dafka_core.model.histograms import BOUNDS_S, Durations


def test_a_duration_is_counted_in_its_bucket() -> None:
    durations = Durations()
    for took_s in (0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1], BOUNDS_S[-1] + 1):
        durations.add(took_s)
    counts = durations.counted.counts
    assert len(counts) == len(BOUNDS_S) + 1
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (2, 1, 1, 1)
    assert durations.counted.sum_s == sum((BOUNDS_S[0] * 2.01, BOUNDS_S[-1] * 2 + 1))


def test_threads_lose_no_count() -> None:
    durations = Durations()

    def count() -> None:
        for _ in range(20_000):
            durations.add(0.5)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sum(durations.counted.counts) == 80_000
    assert durations.counted.sum_s == 40_000.0
