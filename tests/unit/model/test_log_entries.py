"""Attempts, as the log keeps them and as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.log_entries import ATTEMPT_BYTES, REPLICA, attempt_octets, attempt_text

octets_of_attempts = st.binary(min_size=ATTEMPT_BYTES, max_size=ATTEMPT_BYTES)


def test_an_attempt_is_encoded_as_bytes() -> None:
    assert attempt_octets("0123456789ABCDEF" * 2) == bytes.fromhex("0123456789ABCDEF" * 2)


@given(octets_of_attempts.filter(lambda octets: octets != REPLICA))
def test_an_encoded_attempt_is_decoded(octets: bytes) -> None:
    text = octets.hex().upper()
    assert attempt_text(attempt_octets(text)) == text


def test_a_replica_is_no_attempt() -> None:
    assert attempt_text(REPLICA) == ""
    with pytest.raises(ValueError, match="not all zero"):
        attempt_octets(REPLICA.hex())


@pytest.mark.parametrize(
    "attempt", ["", "a" * 32, "A" * 31, "A" * 34, "G" * 32, "AA " * 16, "\uff11" * 32, "é"]
)
def test_an_invalid_attempt_is_refused(attempt: str) -> None:
    with pytest.raises(ValueError, match="32 upper-case hex digits") as refused:
        attempt_octets(attempt)
    assert repr(attempt) in str(refused.value)
