"""Credentials for Arrow Flight, derived from a secret key: a token, and a store's TLS key.

So nothing else must be kept.  The public file has the token's digest and the store's certificate.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
import hmac
import ssl
from typing import TYPE_CHECKING, Final, NamedTuple

from zmq.utils import z85

from dafka_core.errors import HIDDEN

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

SERVER_NAME: Final = "dafka-store"  # subject of all certificates, which clients trust, not hosts
HEADER: Final = "authorization"
SCHEME: Final = "Bearer "  # prefix of a token in a header: RFC 6750
VALID_DAYS: Final = 3_650  # lifetime of a certificate: a key is revoked by its file, not by time
_TOKEN: Final = b"dafka: a token for Arrow Flight, version 1"
_TLS_KEY: Final = b"dafka: a key for TLS, version 1"
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of curve P-256


class TlsPair(NamedTuple):
    """A certificate and its private key, as PEM."""

    certificate: bytes
    private_key: bytes

    def __repr__(self) -> str:
        return f"TlsPair({self.certificate!r}, {HIDDEN})"


def token(secret: bytes) -> str:
    """Return the token that the owner of a secret key, in Z85, sends to a store."""
    return hmac.new(z85.decode(secret), _TOKEN, hashlib.sha256).hexdigest()


def token_digest(token: str) -> str:
    """Return the digest by which a store recognises a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def new_certificate(secret: bytes, name: str, days: float = VALID_DAYS) -> str:
    """Return a certificate for a store with this secret key in Z85, as one line."""
    # Only stores and creators of keys need the library, which takes a while to load.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    key, now = _tls_key(secret), dt.datetime.now(dt.UTC)
    own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
    made = (
        x509.CertificateBuilder(own, own, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))  # clocks differ
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    return base64.b64encode(made.public_bytes(Encoding.DER)).decode()


def tls_pair(secret: bytes, certificate: str) -> TlsPair:
    """Return a store's certificate and private key; raise ValueError if they don't match."""
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415

    key = _tls_key(secret)
    if parsed(certificate).public_key() != key.public_key():
        raise ValueError("has the certificate of another key")
    pkcs8, no_password = form.PrivateFormat.PKCS8, form.NoEncryption()
    private = key.private_bytes(form.Encoding.PEM, pkcs8, no_password)
    return TlsPair(pem(certificate), private)


def pem(certificate: str) -> bytes:
    """Return a certificate of one line as PEM for gRPC."""
    return ssl.DER_cert_to_PEM_cert(base64.b64decode(certificate)).encode()


def parsed(certificate: str) -> x509.Certificate:
    """Parse a certificate of one line; raise ValueError if it is invalid."""
    from cryptography import x509  # noqa: PLC0415

    try:
        return x509.load_der_x509_certificate(base64.b64decode(certificate, validate=True))
    except (ValueError, binascii.Error):
        raise ValueError("has an invalid certificate") from None


def has_expired(certificate: str) -> bool:
    """Return True if a valid certificate has expired."""
    return parsed(certificate).not_valid_after_utc < dt.datetime.now(dt.UTC)


def _tls_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    # Of twice the size, so that each number is equally probable.
    drawn = hmac.new(z85.decode(secret), _TLS_KEY, hashlib.sha512).digest()
    number = int.from_bytes(drawn, "big") % (_ORDER - 1) + 1
    return ec.derive_private_key(number, ec.SECP256R1())
