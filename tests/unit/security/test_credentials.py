"""Tokens and certificates, which are made of a secret key."""

from __future__ import annotations

import base64

import pytest
import zmq
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dafka_core.security.credentials import (
    has_expired,
    new_certificate,
    parsed,
    pem,
    tls_pair,
    token,
    token_digest,
)

SECRETS = [zmq.curve_keypair()[1] for _ in range(2)]


def test_a_token_is_derived_from_its_secret() -> None:
    one, other = map(token, SECRETS)
    assert one == token(SECRETS[0]) != other
    assert len(one) == 64
    assert token_digest(one) not in (one, token_digest(other))
    # Text that is not ASCII is no token, and no error.
    assert token_digest("\udcff") != token_digest(one)


def test_a_certificate_belongs_to_one_secret() -> None:
    made = new_certificate(SECRETS[0], "n" * 100)
    pair = tls_pair(SECRETS[0], made)
    private = load_pem_private_key(pair.private_key, None)
    assert private.public_key() == parsed(made).public_key()
    assert pair.certificate == pem(made)
    with pytest.raises(ValueError, match="certificate of another key"):
        tls_pair(SECRETS[1], made)


def test_a_certificate_expires() -> None:
    assert not has_expired(new_certificate(SECRETS[0], "s"))
    assert has_expired(new_certificate(SECRETS[0], "s", days=0))


@pytest.mark.parametrize("wrong", ["", "!", "abc", base64.b64encode(b"x" * 99).decode(), "\xe9"])
def test_invalid_certificates(wrong: str) -> None:
    with pytest.raises(ValueError, match="has an invalid certificate"):
        parsed(wrong)
