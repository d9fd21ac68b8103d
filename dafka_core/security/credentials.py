"""A key's certificate for TLS, by which Arrow Flight identifies its owner; derived from its secret.

So nothing else must be kept: the secret alone makes the certificate again, and the public file has
a copy of it for those that admit the key.  It never expires, as removing that file revokes it.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import ssl
from typing import TYPE_CHECKING, Final, NamedTuple

import zmq
from zmq.utils import z85

from dafka_core.errors import HIDDEN

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

SERVER_NAME: Final = "dafka-store"  # in all certificates: clients trust certificates, not hosts
KEY_HEADER: Final = "dafka-key"  # names a client's key where there is no TLS: at a socket
_TLS_KEY: Final = b"dafka: a key for TLS, version 1"
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of curve P-256
_FIRST_DAY: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LAST_DAY: Final = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)  # RFC 5280: no expiry


class TlsPair(NamedTuple):
    """A certificate and its private key, as PEM."""

    certificate: bytes
    private_key: bytes

    def __repr__(self) -> str:
        return f"TlsPair({self.certificate!r}, {HIDDEN})"


def certificate_name(public: bytes) -> str:
    """Return the name that the certificate of a public key, in Z85, contains."""
    return z85.decode(public).hex()


def key_of_name(name: str) -> str:
    """Return the public key, in Z85, whose certificate contains this name."""
    return z85.encode(bytes.fromhex(name)).decode()


def new_certificate(secret: bytes) -> str:
    """Return the certificate of a secret key in Z85, as one line."""
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    key = _tls_key(secret)
    made = _certificate(zmq.curve_public(secret), key.public_key(), key)
    return base64.b64encode(made.public_bytes(Encoding.DER)).decode()


def tls_pair(secret: bytes) -> TlsPair:
    """Return the certificate and the private key of a secret key in Z85."""
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415

    pkcs8, no_password = form.PrivateFormat.PKCS8, form.NoEncryption()
    private = _tls_key(secret).private_bytes(form.Encoding.PEM, pkcs8, no_password)
    return TlsPair(pem(new_certificate(secret)), private)


def pem(certificate: str) -> bytes:
    """Return a certificate of one line as PEM for gRPC."""
    return ssl.DER_cert_to_PEM_cert(base64.b64decode(certificate)).encode()


def check_certificate(certificate: str, public: bytes) -> None:
    """Raise ValueError unless a certificate of one line says exactly what ``public``'s should.

    TLS takes the sender's name from it: one with another name, or one that may sign further ones,
    would let its owner act as others.
    """
    from cryptography import x509  # noqa: PLC0415
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    try:
        found = x509.load_der_x509_certificate(base64.b64decode(certificate, validate=True))
        key = found.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != ec.SECP256R1.name:
            raise ValueError
    except (ValueError, UnsupportedAlgorithm):  # also invalid base64
        raise ValueError("has an invalid certificate") from None
    expected = _certificate(public, key, ec.derive_private_key(1, ec.SECP256R1()))
    if found.tbs_certificate_bytes != expected.tbs_certificate_bytes:
        raise ValueError("has the certificate of another key")


def _certificate(
    public: bytes, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    # Only programs with keys need the library, which takes a while to load.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415

    name = certificate_name(public)
    own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName([x509.DNSName(name), x509.DNSName(SERVER_NAME)])
    return (
        x509.CertificateBuilder(own, own, key, 1, _FIRST_DAY, _LAST_DAY)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(signer, SHA256(), ecdsa_deterministic=True)
    )


def _tls_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    # Of twice the size, so that each number is equally probable.
    drawn = hmac.new(z85.decode(secret), _TLS_KEY, hashlib.sha512).digest()
    number = int.from_bytes(drawn, "big") % (_ORDER - 1) + 1
    return ec.derive_private_key(number, ec.SECP256R1())
