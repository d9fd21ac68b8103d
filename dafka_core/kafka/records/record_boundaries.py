"""Where each record of a batch begins and ends.

A record begins with its length, so each is known once the one before it is.  What is quick is to
guess where records are, all at once, and to see that each one leads to the next: then, the first
one being where it must be, all are.  Where a guess is wrong they are followed one by one.

Measured for values of about 100 octets, 10,000 of them, in microseconds a record: 0.006 where all
are of one length, 0.07 where they are not, 0.11 one by one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dafka_core.envelope_heads import Octets
from dafka_core.kafka.records.varint_columns import INT_OCTETS, read_varint, read_varints
from dafka_core.values import FEW, Bytes, Longs

MIN_RECORD_BYTES: Final = 7
"""Length, attributes, two deltas, two lengths and the number of headers."""

_FEW_RUNS: Final = 16
"""Runs of records of one length that are looked for; each costs as much as some 50 records."""

_MIN_RUN: Final = 32
"""Deltas take one octet more from 64 on."""

_MAX_CANDIDATES: Final = 8
"""For each record: of more octets that are 0 it takes longer to look at them."""

_MANY: Final = 100_000
"""Of more records at once it takes too much memory."""

_MAX_RECORD_BYTES: Final = 512
"""Of larger records it takes longer to find the octets that are 0."""

_COMPARED_OCTETS: Final = 2
"""Of a length: the first one and the last one."""

_COPIED_BYTES: Final = 64 << 10

_ROUNDS: Final = 3
"""In which what leads nowhere, or is led to by nothing, is left out; then the rest is right."""


class Boundaries(NamedTuple):
    """Where records lie: from ``starts``, after their lengths, up to ``ends`` (exclusive)."""

    starts: Longs
    ends: Longs


def boundaries_of(octets: Octets, count: int) -> Boundaries | None:
    """Where ``count`` records lie that are all of the octets; None if they do not."""
    if count * MIN_RECORD_BYTES > len(octets):
        return None
    found = None
    if count > _MIN_RUN:
        found = _runs(octets, count)
    if found is None and FEW <= count <= _MANY and len(octets) < count * _MAX_RECORD_BYTES:
        found = _by_zeros(octets, count)
    return _one_by_one(octets, count) if found is None else found


def boundaries_of_each(octets: Octets, size_bytes: int, count: int) -> Boundaries | None:
    """The same of batches one after the other that have so many octets, and records, each.

    None unless all records lie in each batch as they do in the first one.  So they do mostly where
    values are of one length: producers send a batch when it has as many octets as it may.
    """
    first = boundaries_of(octets[:size_bytes], count)
    if first is None:
        return None
    heads = np.concatenate(([0], first.ends[:-1]))
    if (first.starts - heads).max() > _COMPARED_OCTETS:
        return None
    rows = octets.reshape(-1, size_bytes)
    lengths = rows[:, np.concatenate((heads, first.starts - 1))]
    if (lengths != lengths[0]).any():
        return None
    bases = np.arange(0, len(octets), size_bytes)[:, np.newaxis]
    return Boundaries((bases + first.starts).ravel(), (bases + first.ends).ravel())


def _runs(octets: Octets, count: int) -> Boundaries | None:
    starts: list[Longs] = []
    ends: list[Longs] = []
    at = 0
    for _ in range(_FEW_RUNS):
        length, after = read_varint(octets.data, at, INT_OCTETS)
        width, size = after - at, after - at + length
        if length <= 0 or at + size > len(octets):
            return None
        left = min((len(octets) - at) // size, count)
        columns = octets[at : at + left * size].reshape(left, size)
        run = left
        for column in range(width):
            run = int((columns[:run, column] != columns[0, column]).argmax()) or run
        if run < min(_MIN_RUN, left):
            return None
        starts.append(np.arange(at + width, at + run * size, size))
        ends.append(np.arange(at + size, at + run * size + 1, size))
        at, count = at + run * size, count - run
        if not count or at == len(octets):
            break
    if count or at != len(octets):
        return None
    return Boundaries(np.concatenate(starts), np.concatenate(ends))


def _by_zeros(octets: Octets, count: int) -> Boundaries | None:
    """Of any records: after its length each one has an octet that is 0, its attributes."""
    starts = np.flatnonzero(octets == 0)
    if len(starts) > count * _MAX_CANDIDATES:
        return None
    starts = starts[int(len(starts) > 0 and starts[0] == 0) :]  # there is a length before it
    last, other = octets[starts - 1].astype(np.int64), octets[starts - 2].astype(np.int64)
    has_two = (other >= 0x80) & (starts != 1)
    lengths = np.where(has_two, last << 7 | other & 0x7F, last)
    ends = starts + (lengths >> 1)
    heads = starts - 1 - has_two
    fit = (last < 0x80) & (lengths & 1 == 0) & (ends <= len(octets))
    fit &= lengths >= 2 * (MIN_RECORD_BYTES - 1)
    for _ in range(_ROUNDS):
        heads, starts, ends = heads[fit], starts[fit], ends[fit]
        if not len(starts):
            return None
        if len(starts) == count and (ends[:-1] == heads[1:]).all():
            is_whole = heads[0] == 0 and ends[-1] == len(octets)
            return Boundaries(starts, ends) if is_whole else None
        leads, is_led_to = np.zeros((2, len(octets) + 1), np.bool_)
        leads[heads] = leads[len(octets)] = True
        is_led_to[ends] = is_led_to[0] = True
        fit = leads[ends] & is_led_to[heads]
    return None


def _one_by_one(octets: Octets, count: int) -> Boundaries | None:
    # An octet of bytes is had sooner; of many the copy takes longer.
    data: Bytes = octets.tobytes() if len(octets) < _COPIED_BYTES else octets.data
    bounds = [0]
    at = 0
    try:
        for _ in range(count):
            first = data[at]
            if first < 0x80:
                at += 1 + (first >> 1)
            else:
                second = data[at + 1]
                if second < 0x80:
                    at += 2 + ((first & 0x7F | second << 7) >> 1)
                else:
                    length, at = read_varint(data, at, INT_OCTETS)
                    if length < 0:
                        return None
                    at += length
            bounds.append(at)
    except IndexError:
        return None
    ends = np.array(bounds)
    lengths, starts = read_varints(octets, ends[:-1], INT_OCTETS)
    if at != len(octets) or lengths.min() < 0:
        return None
    return Boundaries(starts, ends[1:])
