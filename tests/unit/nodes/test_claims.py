"""Whose node is at an endpoint that several announce as theirs."""

from __future__ import annotations

import pytest

from dafka_core.errors import ProtocolError
from dafka_core.nodes.claims import PROOF_S, Claims

AT = "tcp://127.0.0.1:1"


def test_who_was_announced_first_is_expected_until_he_has_had_his_time() -> None:
    claims = Claims()
    assert claims.key_at(AT) == ""
    assert not claims.take(0, AT, "honest")
    assert not claims.take(5, AT, "honest")
    assert claims.key_at(AT) == "honest"
    claims.forget(AT)
    assert not claims.take(0, AT, "mallory")
    with pytest.raises(ProtocolError, match="another node"):
        claims.take(PROOF_S - 0.1, AT, "honest")
    # Nobody prolongs his time by being announced again.
    assert not claims.take(PROOF_S - 0.1, AT, "mallory")
    assert claims.take(PROOF_S, AT, "honest")
    with pytest.raises(ProtocolError):
        claims.take(PROOF_S + 0.1, AT, "mallory")
    assert claims.key_at(AT) == "honest"


def test_who_is_connected_to_with_his_key_is_there_until_that_ends() -> None:
    claims = Claims()
    claims.take(0, AT, "honest")
    claims.prove(AT, is_proved=True)
    with pytest.raises(ProtocolError):
        claims.take(1_000, AT, "mallory")
    claims.prove(AT, is_proved=False)
    assert claims.take(1_000, AT, "another one, started on the same port")


def test_nothing_is_kept_of_endpoints_that_are_forgotten() -> None:
    claims = Claims()
    claims.prove(AT, is_proved=True)
    assert len(claims) == 0
    claims.take(0, AT, "key")
    assert len(claims) == 1
    claims.forget(AT)
    claims.forget(AT)
    assert len(claims) == 0
