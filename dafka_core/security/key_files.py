"""Keys in files, in the format of ZeroMQ's certificates (CZMQ's ``zcert``).

``NAME.key_secret`` is for its owner alone; ``NAME.key`` is public, with its owner's permissions and
its certificate for TLS, by which Arrow Flight identifies its owner.

The certificate is derived from the secret.  So nothing else must be kept: the secret alone makes
the certificate again, and the public file has a copy of it for those that admit the key.  It never
expires, as removing that file revokes it.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import os
import re
import ssl
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import zmq
from zmq.utils import z85

from dafka_core.config.node_options import SecurityOptions
from dafka_core.errors import HIDDEN, ConfigError
from dafka_core.model.names import escape
from dafka_core.security.permissions import Permissions, address_prefix, parse_patterns, parse_roles
from dafka_core.system.files import PrivateFile, make_directory, open_new, replace_file

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec


PUBLIC: Final = ".key"
SECRET: Final = ".key_secret"  # noqa: S105 -- no secret

FROM_ENVIRONMENT: Final = "env:"
"""Prefix of an environment variable's name in place of a file's name."""

_SECRET_DIGITS: Final = 40

_TEXT: Final = """\
# A {}, in the format of ZeroMQ's certificates (docs/security.md)

metadata
curve
    public-key = "{}"
"""

CERTIFICATE: Final = "certificate"

_PERMISSIONS: Final[tuple[str, ...]] = ("roles", "produce", "consume", "addresses")
_NAME: Final = re.compile(r"(?a)[\w][\w.-]{0,99}")
_KEY: Final = re.compile(r"(?m)^\s*(public|secret)-key\s*=\s*[\"']?(.*?)[\"']?\s*$")
_METADATA: Final = re.compile(
    rf"\s+({'|'.join((*_PERMISSIONS, CERTIFICATE))})"
    r"\s*=\s*(?:\"([^\"]*)\"|([\w.*?, -]*))"
)
"""A line of metadata.  Quotation marks may enclose any pattern; otherwise only unambiguous
characters are accepted."""

_UNREADABLE: Final = re.compile(r"[\"\r\n\ud800-\udfff]")
"""Characters in a pattern that would make the file unreadable."""


class KeyPair(NamedTuple):
    """A node's own key, both halves in Z85."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r}, {HIDDEN})"


class AllowedKey(NamedTuple):
    """A public key in Z85, and its owner's permissions.

    The certificate, as one line, is empty in a file written by hand without it.
    """

    key: str
    permissions: Permissions
    certificate: str = ""

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return self.permissions.name

    @property
    def roles(self) -> frozenset[str]:
        """Return its owner's roles."""
        return self.permissions.roles


def new_key(
    directory: Path, name: str, roles: tuple[str, ...], **patterns: tuple[str, ...]
) -> tuple[Path, Path]:
    """Create a key; return its public file and its secret one, which only its owner can read.

    ``patterns`` are those of ``Permissions``: ``produce``, ``consume`` and ``addresses``.

    Raises:
        ConfigError: the name is unsuitable for a file or exists, or a pattern cannot be written.
        OSError: the directory cannot be created or written to.
    """
    if not _NAME.fullmatch(name):
        why = "must begin with a letter or digit, and have letters, digits, '.', '_' and '-' only"
        raise ConfigError("name", name, why, "argument")
    for option, each in patterns.items():
        for pattern in filter(_UNREADABLE.search, each):
            why = "a key's file cannot contain '\"', a line break, or invalid UTF-8: write '?'"
            raise ConfigError(option, escape(pattern), why)
    make_directory(directory, 0o700)
    public, secret = zmq.curve_keypair()
    given = {"roles": roles, **patterns}
    facts = {each: ", ".join(given[each]) for each in _PERMISSIONS if each in given}
    facts[CERTIFICATE] = new_certificate(secret)
    public_file, secret_file = directory / f"{name}{PUBLIC}", directory / f"{name}{SECRET}"
    text = _TEXT.format("secret key: only its owner may read this file", public.decode())
    try:
        with (
            open_new(secret_file, 0o600, replaces=False) as own,
            open_new(public_file, replaces=False) as shown,
        ):
            own.write(f'{text}    secret-key = "{secret.decode()}"\n'.encode())
            text = _TEXT.format("public key: nodes with this file admit its owner", public.decode())
            shown.write(_with_metadata(text, facts).encode())
    except FileExistsError:
        why = f"a key of that name exists in {directory} already, and is unchanged"
        raise ConfigError("name", name, why, "argument") from None
    return public_file, secret_file


def renew(directory: Path, name: str) -> None:
    """Write the certificate for Arrow Flight into a public file that was written by hand.

    Raises ConfigError if the key or its secret is missing in the directory, or the file is invalid.
    """
    public = directory / f"{name}{PUBLIC}"
    own = read_secret(str(public.with_suffix(SECRET)))
    try:
        known = read_public(public)
        if known.key.encode() != own.public:
            raise ValueError(f"is not the public half of {name}{SECRET}")
        made = new_certificate(own.secret)
        text = _with_metadata(public.read_text("utf-8"), {CERTIFICATE: made})
        if parse_public(name, text.encode()).certificate != made:
            raise ValueError("has no line that is just 'metadata': write one above the roles")
    except ValueError as error:
        raise ConfigError("name", name, f"{public.name} {error}", "argument") from None
    replace_file(public, text.encode(), public.stat().st_mode & 0o777)


def read_secret(file: str) -> KeyPair:
    """Read a node's own key from a file or an environment variable (``env:NAME``).

    Raises ConfigError if it is invalid, cannot be read, or others can read it.
    """
    try:
        if file.startswith(FROM_ENVIRONMENT):
            return _from_environment(file.removeprefix(FROM_ENVIRONMENT))
        return PrivateFile(file, "dafka keys new", _parse_secret).read()
    except ValueError as error:
        raise ConfigError("secret_key_file", file, str(error)) from None


def _parse_secret(octets: bytes) -> KeyPair:
    try:
        public, secret = _halves(octets)
        if secret and zmq.curve_public(secret) != public:
            raise ValueError
    except (ValueError, zmq.ZMQError):
        raise ValueError("holds no key, or not a whole one: 'dafka keys new' makes them") from None
    if not secret:
        raise ValueError(f"has a public key only: name the file that ends in {SECRET}")
    return KeyPair(public, secret)


def _from_environment(name: str) -> KeyPair:
    secret = os.environ.get(name, "").strip().encode()
    try:
        return KeyPair(zmq.curve_public(secret), secret)
    except (ValueError, zmq.ZMQError):
        # A secret given by mistake instead of its place must not appear in a log.
        shown = name if name.isidentifier() and len(name) < _SECRET_DIGITS else HIDDEN
        raise ValueError(
            f"environment variable {shown} must be the 40 characters after secret-key in a file "
            f"NAME{SECRET} that 'dafka keys new' made"
        ) from None


def own_prefix(config: SecurityOptions) -> str:
    """Return the prefix of a node's addresses; empty without a key.  See ``read_secret``."""
    if not config.secret_key_file:
        return ""
    return address_prefix(read_secret(config.secret_key_file).public)


def read_public(path: Path) -> AllowedKey:
    """Read a public file; raise ValueError with the reason if it is invalid."""
    try:
        return parse_public(path.stem, path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None


def parse_public(name: str, octets: bytes) -> AllowedKey:
    """Parse a public file's contents; raise ValueError with the reason if they are invalid."""
    public, secret = _halves(octets)
    if secret:
        raise ValueError(f"holds a secret key, which is for its owner alone: name it NAME{SECRET}")
    facts = _metadata(octets.decode("utf-8-sig"))
    if "roles" not in facts:
        raise ValueError("has no roles: 'dafka keys new --role ROLE' writes them")
    roles = frozenset(parse_roles([facts["roles"]]))
    patterns = {each: parse_patterns([facts[each]]) for each in _PERMISSIONS[1:] if each in facts}
    owner = Permissions(name, roles, prefix=address_prefix(public), **patterns)
    if certificate := facts.get(CERTIFICATE, ""):
        check_certificate(certificate, public)
    return AllowedKey(public.decode(), owner, certificate)


def _halves(octets: bytes) -> tuple[bytes, bytes]:
    """Return the public and the secret half of a key in a file, in Z85; the latter may be empty."""
    try:
        halves = dict(_KEY.findall(octets.decode("utf-8-sig")))
        public, secret = halves["public"].encode(), halves.get("secret", "").encode()
        if len(z85.decode(public)) != 32:
            raise ValueError
    except (ValueError, KeyError, struct.error):  # invalid Z85
        raise ValueError("holds no public key, or not a whole one") from None
    return public, secret


def _metadata(text: str) -> dict[str, str]:
    """Parse the metadata of a public file; an unknown line might be meant to restrict its owner."""
    facts: dict[str, str] = {}
    section = ""
    for number, line in enumerate(map(str.rstrip, text.split("\n")), 1):
        if not line or line.lstrip().startswith("#"):
            continue
        found = (_KEY if section == "curve" else _METADATA).fullmatch(line)
        if line in ("metadata", "curve"):
            section = line
        elif not section or found is None or found[1] in facts:
            form = f'an indented NAME = "VALUE" for {", ".join(_PERMISSIONS)}, each once'
            raise ValueError(f"has line {number}, which is no line of a key: they are {form}")
        else:
            facts[found[1]] = found[found.lastindex or 1]
    return facts


def _with_metadata(text: str, facts: Mapping[str, str]) -> str:
    text = re.sub(rf"(?m)^[ \t]+({'|'.join(facts)})\s*=.*(\n|\Z)", "", text)
    lines = "".join(f'    {name} = "{fact}"\n' for name, fact in facts.items())
    return re.sub(r"(?m)^metadata[ \t]*\n", lambda _: f"metadata\n{lines}", text, count=1)


# -- certificates ----------------------------------------------------------------------------------

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
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):  # also invalid base64
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
