"""Certificates, which are derived from a secret key."""

from __future__ import annotations

import base64
import datetime as dt
from typing import Any

import pytest
import zmq
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from dafka_core.security import credentials
from dafka_core.security.credentials import (
    SERVER_NAME,
    certificate_name,
    check_certificate,
    key_of_name,
    new_certificate,
    pem,
    tls_pair,
)

PAIRS = [zmq.curve_keypair() for _ in range(2)]
PUBLIC, SECRET = PAIRS[0]


def test_a_certificate_is_derived_from_its_secret() -> None:
    made = new_certificate(SECRET)
    assert made == new_certificate(SECRET) != new_certificate(PAIRS[1][1])
    check_certificate(made, PUBLIC)
    pair = tls_pair(SECRET)
    assert pair.certificate == pem(made)
    shown = x509.load_pem_x509_certificate(pair.certificate)
    assert load_pem_private_key(pair.private_key, None).public_key() == shown.public_key()
    assert key_of_name(certificate_name(PUBLIC)) == PUBLIC.decode()


def test_no_clock_is_too_wrong_for_a_certificate() -> None:
    made = x509.load_pem_x509_certificate(tls_pair(SECRET).certificate)
    assert made.not_valid_before_utc == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert made.not_valid_after_utc.year == 9999


@pytest.mark.parametrize("wrong", ["!", "abc", base64.b64encode(b"x" * 99).decode(), "\xe9"])
def test_invalid_certificates(wrong: str) -> None:
    with pytest.raises(ValueError, match="has an invalid certificate"):
        check_certificate(wrong, PUBLIC)


def forged(
    *,
    key: Any = None,
    names: tuple[str, ...] = (certificate_name(PUBLIC), SERVER_NAME),
    ca: bool | None = False,
) -> str:
    key = key or ec.generate_private_key(ec.SECP256R1())
    own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, certificate_name(PUBLIC))])
    dates = credentials._FIRST_DAY, credentials._LAST_DAY
    made = x509.CertificateBuilder(own, own, key.public_key(), 1, *dates).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), critical=False
    )
    if ca is not None:
        made = made.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    return base64.b64encode(made.sign(key, SHA256()).public_bytes(Encoding.DER)).decode()


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"names": (certificate_name(PAIRS[1][0]), SERVER_NAME)}, "the certificate of another key"),
        ({"names": (certificate_name(PUBLIC), SERVER_NAME, "x")}, "the certificate of another key"),
        ({"ca": True}, "the certificate of another key"),  # its owner could sign further ones
        ({"ca": None}, "the certificate of another key"),
        ({"key": ec.generate_private_key(ec.SECP384R1())}, "an invalid certificate"),
        ({"key": rsa.generate_private_key(65537, 2048)}, "an invalid certificate"),
    ],
)
def test_a_certificate_that_says_something_else_is_refused(facts: Any, why: str) -> None:
    check_certificate(forged(), PUBLIC)
    with pytest.raises(ValueError, match=why):
        check_certificate(forged(**facts), PUBLIC)
