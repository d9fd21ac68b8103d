"""Keys in files: their requirements, and messages about invalid ones."""

import base64
import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from dafka_core.config.node_options import ReaderOptions, TowerOptions
from dafka_core.errors import ConfigError
from dafka_core.model.names import escape
from dafka_core.nodes.security import Security
from dafka_core.security import key_files
from dafka_core.security.key_files import (
    SERVER_NAME,
    certificate_name,
    check_certificate,
    key_of_name,
    new_certificate,
    new_key,
    pem,
    read_public,
    read_secret,
    renew,
    tls_pair,
)


def test_a_key_is_created_once_with_a_private_secret(tmp_path: Path) -> None:
    public, secret = new_key(tmp_path / "keys", "s-1", ("store", "admin"))
    assert secret.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    made, before = read_public(public), secret.read_text()
    assert (made.name, made.roles) == ("s-1", frozenset({"store", "admin"}))
    assert read_secret(str(secret)).public.decode() == made.key
    with pytest.raises(ConfigError, match=r"a key of that name exists in .* already"):
        new_key(tmp_path / "keys", "s-1", ("tower",))
    # Half of one is kept as well.
    secret.unlink()
    with pytest.raises(ConfigError, match="already"):
        new_key(tmp_path / "keys", "s-1", ("tower",))
    assert read_public(public) == made
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == ["s-1.key"]
    assert before.count("secret-key") == 1


@pytest.mark.parametrize("metadata", ["metadata", "metadata  ", "# about metadata\nmetadata"])
def test_a_file_written_by_hand_gets_the_certificate_of_its_secret(
    tmp_path: Path, metadata: str
) -> None:
    public, secret = new_key(tmp_path, "s", ("consume",), addresses=("A*",))
    made, own = read_public(public), read_secret(str(secret)).secret
    assert made.certificate == new_certificate(own)
    lines = [line for line in public.read_text().splitlines() if "certificate =" not in line]
    public.write_text("\n".join([*lines, ""]).replace("metadata", metadata))
    assert read_public(public) == made._replace(certificate="")
    for _ in range(2):
        renew(tmp_path, "s")
        assert read_public(public) == made


def test_a_file_with_the_certificate_of_another_key_admits_none(tmp_path: Path) -> None:
    """Otherwise its owner would act as that key's."""
    mine, victims = (read_public(new_key(tmp_path, name, ("consume",))[0]) for name in ("a", "b"))
    path = tmp_path / "a.key"
    path.write_text(path.read_text().replace(mine.certificate, victims.certificate))
    with pytest.raises(ValueError, match="has the certificate of another key"):
        read_public(path)


def test_a_key_whose_secret_is_elsewhere_is_not_renewed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        new_key(tmp_path, name, ("store",))
    shutil.copy(tmp_path / "a.key", tmp_path / "b.key")
    with pytest.raises(ConfigError, match="is not the public half of b"):
        renew(tmp_path, "b")
    (tmp_path / "a.key_secret").unlink()
    with pytest.raises(ConfigError, match="must be a file that 'dafka keys new' made"):
        renew(tmp_path, "a")


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "a b", "-x", "n" * 200])
def test_invalid_names_of_keys(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must begin with a letter or digit"):
        new_key(tmp_path, name, ("tower",))


@pytest.mark.parametrize("pattern", ['say "hi"*', "a\nb*", "a\rb*", "a\udcffb*"])
@pytest.mark.parametrize("option", ["produce", "consume", "addresses"])
def test_an_unreadable_pattern_is_refused(option: str, pattern: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a key's file cannot contain") as refused:
        new_key(tmp_path, "n", ("produce", "consume"), **{option: ("good.*", pattern)})
    assert (refused.value.option, refused.value.value) == (option, escape(pattern))
    assert list(tmp_path.iterdir()) == []


def test_other_patterns_are_preserved(tmp_path: Path) -> None:
    patterns = ("\u00fc*", "it's", "#1", "a = b", "\\x", "{x}[!a-c]?", "a\x0b\x85\u2028b")
    public, _ = new_key(tmp_path, "n", ("produce",), produce=patterns)
    assert read_public(public).permissions.produce == patterns
    renew(tmp_path, "n")
    assert read_public(public).permissions.produce == patterns


def _public(path: Path) -> None:
    shutil.copy(path.with_suffix(".key"), path)
    path.chmod(0o600)


def _public_to_all(path: Path) -> None:
    _public(path)
    path.chmod(0o644)


def _cut(path: Path) -> None:
    path.write_text(path.read_text().replace('secret-key = "', 'secret-key = "x'))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.chmod(0o644), "can be read by others: 'chmod 600 "),
        (lambda path: path.chmod(0o640), "can be read by others"),
        (lambda path: path.unlink(), r"must be a file that 'dafka keys new' made \(No such file"),
        (_public, "has a public key only: name the file that ends in .key_secret"),
        (_public_to_all, "has a public key only: name the file that ends in .key_secret"),
        (_cut, "holds no key, or not a whole one"),
        (lambda path: path.write_text("nothing"), "holds no key, or not a whole one"),
        (lambda path: path.write_bytes(b"\xff\xfe\0"), "holds no key, or not a whole one"),
    ],
)
def test_invalid_secret_files(spoil: Callable[[Path], object], why: str, tmp_path: Path) -> None:
    _, secret = new_key(tmp_path, "n", ("produce",))
    spoil(secret)
    with pytest.raises(ConfigError, match=why) as refused:
        read_secret(str(secret))
    assert refused.value.option == "secret_key_file"


def test_a_secret_given_as_a_file_name_is_not_shown() -> None:
    _, secret = zmq.curve_keypair()
    with pytest.raises(ConfigError) as refused:
        read_secret(secret.decode())
    assert secret.decode() not in str(refused.value)
    for given in (secret.decode(), "A" * 40):
        with pytest.raises(ConfigError, match=r"variable \(not shown\) must be") as refused:
            read_secret(f"env:{given}")
        assert given not in str(refused.value)


def test_repr_hides_secrets(tmp_path: Path) -> None:
    _, secret = new_key(tmp_path, "s", ("store",))
    own = read_secret(str(secret))
    assert own.secret.decode() not in repr(own)
    assert own.public.decode() in repr(own)
    assert "PRIVATE" not in repr(tls_pair(own.secret))


@pytest.mark.parametrize(
    ("is_tower", "roles", "why"),
    [
        (True, ("store",), "key n has not the role tower"),
        (False, ("tower",), "key n is a tower's only"),
        (False, ("store",), "has no key with role tower"),
    ],
)
def test_a_key_with_another_role_is_refused(
    is_tower: bool, roles: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    _, secret = new_key(tmp_path, "n", roles)
    given = {"secret_key_file": str(secret), "allowed_keys": str(tmp_path)}
    config = TowerOptions.build(given) if is_tower else ReaderOptions.build(given)
    with zmq.Context() as context, pytest.raises(ConfigError, match=why):
        Security(config, context, is_tower=is_tower)


def test_a_secret_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, secret = new_key(tmp_path, "n", ("produce",))
    own = read_secret(str(secret))
    monkeypatch.setenv("MY_KEY", own.secret.decode() + "\n")
    assert read_secret("env:MY_KEY") == own
    for wrong in ("", own.secret.decode()[:-1], "~" * 40, "\u20ac"):
        monkeypatch.setenv("MY_KEY", wrong)
        with pytest.raises(ConfigError, match="variable MY_KEY must be the 40 characters") as no:
            read_secret("env:MY_KEY")
        assert not wrong or wrong not in str(no.value)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ConfigError, match="variable MY_KEY must be"):
        read_secret("env:MY_KEY")


@pytest.mark.parametrize(
    "line",
    [
        '    produce = "plant.*", "orders"',
        '    produce = "plant.*"   # sensors',
        '    produce: "plant.*"',
        "    produce = 'plant.*'",
        '    produce = ["plant.*"]',
        '    Produce = "plant.*"',
        '    produces = "plant.*"',
        'produce = "plant.*"',
        '    produce = "*"\n    produce = "plant.*"',
        'curve\n    produce = "plant.*"',
        '    produce = "plant.*',
    ],
)
def test_an_unknown_line_is_refused(line: str, tmp_path: Path) -> None:
    public, _ = new_key(tmp_path, "n", ("produce",), produce=("plant.*",))
    text = public.read_text()
    public.write_text(text.replace('    produce = "plant.*"', line))
    with pytest.raises(ValueError, match=r"has line \d+, which is no line of a key: "):
        read_public(public)


def test_a_public_file_written_by_hand(tmp_path: Path) -> None:
    public, _ = new_key(tmp_path, "n", ("produce",))
    made, lines = read_public(public), public.read_text().splitlines()
    written = ["# ours", "metadata", "\troles = produce", "", "    # all of the plant's"]
    written += ["    produce = plant.*, orders-?", '  addresses="[AB]*"', *lines[-2:], ""]
    public.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(written).encode())
    found = read_public(public)
    assert (found.key, found.roles) == (made.key, made.roles)
    assert found.permissions.produce == ("plant.*", "orders-?")
    assert found.permissions.addresses == ("[AB]*",)


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


def test_a_certificate_of_an_unknown_version_is_invalid() -> None:
    """The library's error for it is no ValueError, and would end each node with the directory."""
    octets, version = base64.b64decode(new_certificate(SECRET)), bytes((0xA0, 3, 2, 1, 2))
    wrong = octets.replace(version, version[:-1] + b"\x05", 1)
    with pytest.raises(ValueError, match="has an invalid certificate"):
        check_certificate(base64.b64encode(wrong).decode(), PUBLIC)


def forged(
    *,
    key: Any = None,
    names: tuple[str, ...] = (certificate_name(PUBLIC), SERVER_NAME),
    ca: bool | None = False,
) -> str:
    key = key or ec.generate_private_key(ec.SECP256R1())
    own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, certificate_name(PUBLIC))])
    dates = key_files._FIRST_DAY, key_files._LAST_DAY
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
