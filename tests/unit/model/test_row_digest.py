"""The digest of a transaction's rows knows which they are, and not in which order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.row_digest import RowDigest
from dafka_core.model.values import Values

ROWS = st.lists(st.binary(max_size=3), max_size=8)


def digest_of(*blocks: Sequence[bytes]) -> RowDigest:
    digest = RowDigest()
    for block in blocks:
        digest.add(Values.of(block))
    return digest


@given(rows=ROWS, at=st.integers(0, 8), data=st.data())
def test_the_same_rows_have_one_digest(rows: list[bytes], at: int, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(rows))
    assert digest_of(rows) == digest_of(shuffled[:at], shuffled[at:])


@given(rows=ROWS, others=ROWS)
def test_different_rows_have_different_digests(rows: list[bytes], others: list[bytes]) -> None:
    assert (digest_of(rows) == digest_of(others)) == (sorted(rows) == sorted(others))


@pytest.mark.parametrize("others", [[b"a", b"a", b"c"], [b"ab", b"", b"c"], [b"a", b"b"]])
def test_duplicate_and_missing_rows_change_the_digest(others: list[bytes]) -> None:
    assert digest_of([b"a", b"b", b"c"]) != digest_of(others)


@given(rows=ROWS, others=ROWS)
def test_digests_are_added_and_parsed(rows: list[bytes], others: list[bytes]) -> None:
    whole = digest_of(rows, others)
    assert digest_of(rows) + digest_of(others) == whole
    count, _, digits = str(whole).partition(":")
    assert (int(count), len(digits)) == (len(rows) + len(others), 32)
    assert RowDigest.parse(str(whole)) == whole
