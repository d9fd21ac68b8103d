"""The audit of ``dafka doctor``: what it says of what stands open."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from dafka_core.credentials import new_certificate
from dafka_core.diagnosis.facts import Facts, StoreFacts
from dafka_core.diagnosis.findings import Severity
from dafka_core.diagnosis.port_probe import LOCKED, Answer, PortFacts
from dafka_core.diagnosis.security_checks import check_security
from dafka_core.diagnosis.tower_checks import TowerFacts
from dafka_core.keys import key_files
from dafka_core.keys.key_files import new_key, read_secret, renew
from dafka_core.node_options import TowerAddress
from dafka_core.security_options import SecurityOptions

NO_KEYS = SecurityOptions()


def tower(host: str, said: str) -> TowerFacts:
    port = PortFacts(host, 1, Answer.ZEROMQ, said)
    return TowerFacts(TowerAddress(host, 1, 2), port, port)


def sentences(config: SecurityOptions, facts: Facts) -> list[str]:
    return [str(each) for each in check_security(config, facts)]


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (Facts((tower("127.0.0.1", "XSUB"),)), []),
        (Facts((tower("10.0.0.1", LOCKED),)), []),
        (Facts((tower("10.0.0.1", ""),)), []),
        (Facts((tower("10.0.0.1", "XSUB"),)), ["tower 10.0.0.1:1:2 talks to whoever reaches it"]),
        (Facts(stores=(StoreFacts("S", locations=("grpc://127.0.0.1:1",)),)), []),
        (Facts(stores=(StoreFacts("S", locations=("grpc+tls://10.0.0.1:1",)),)), []),
        (
            Facts(stores=(StoreFacts("S", locations=("grpc://[fd00::1]:1",)),)),
            ["store S serves Arrow Flight at grpc://[fd00::1]:1 to whoever reaches it"],
        ),
    ],
)
def test_what_other_machines_reach_without_a_key_is_said(facts: Facts, says: list[str]) -> None:
    found = check_security(NO_KEYS, facts)
    warned = [str(each) for each in found if each.severity is Severity.WARNING]
    assert [each[: len(said)] for each, said in zip(warned, says, strict=True)] == says
    assert all("give towers and nodes keys" in each for each in warned)
    assert any(each.severity is Severity.OK for each in found) == (not says)


def test_a_directory_that_everybody_reads_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    facts = Facts(stores=(StoreFacts("S", locations=(f"grpc+unix://{tmp_path}/flight.sock",)),))
    (said,) = sentences(NO_KEYS, facts)
    assert "everybody on this machine can read the records of store S" in said
    tmp_path.chmod(0o700)
    assert "there are no keys" in sentences(NO_KEYS, facts)[0]


def test_that_insecure_is_set_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_INSECURE", "true")
    (said,) = sentences(NO_KEYS, Facts())
    assert "insecure is set here" in said


def test_keys_are_looked_at(tmp_path: Path) -> None:
    secrets, allowed = tmp_path / "secrets", tmp_path / "allowed"
    allowed.mkdir()
    for name, roles in (("hub", ("tower", "store")), ("s", ("store",)), ("me", ("consume",))):
        new_key(secrets, name, roles)
        shutil.copy(secrets / f"{name}.key", allowed)
    own = secrets / "me.key_secret"
    config = SecurityOptions(secret_key_file=str(own), allowed_keys=str(allowed))
    own_key, of_tower = sentences(config, Facts())
    assert own_key == "this node has key me, with consume"
    assert of_tower.startswith("key hub is a tower's, and may do more; make a key of its own")
    new_key(secrets, "hub2", ("tower",))
    shutil.copy(secrets / "hub2.key", allowed / "hub.key")
    shutil.copy(secrets / "s.key_secret", allowed)
    shutil.copy(own, allowed)  # another file with the same secret
    allowed.chmod(0o770)
    text = (allowed / "s.key").read_text()
    (allowed / "s.key").write_text("\n".join(x for x in text.split("\n") if "token" not in x))
    (allowed / "me.key").unlink()
    said = sentences(config, Facts())
    for number, each in enumerate(
        (
            "own key, .*, is not in .*; copy its .key file there",
            "a group can write to .*, and so let in anybody",
            r"the secret of key s lies here, too \(.*s.key_secret\); bring it to its owner",
            "Arrow Flight does not know key s, .*'dafka keys renew s'",
        )
    ):
        assert re.search(each, said[number]), said
    assert len(said) == 4


def test_who_else_can_write_to_the_files_of_keys_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public, own = new_key(tmp_path, "me", ("consume",))
    config = SecurityOptions(secret_key_file=str(own), allowed_keys=str(tmp_path))
    public.chmod(0o664)
    said = sentences(config, Facts())
    assert said[1:] == [
        f"a group can write to {public}, and so let in anybody; 'chmod g-w {public}'"
    ]
    public.chmod(0o644)
    for path in (tmp_path, public, own):
        give_away(path, monkeypatch)
    # The node's user owns the secret, too, and another one looks.
    assert len(sentences(config, Facts())) == 1
    monkeypatch.setenv("OWN_KEY", read_secret(str(own)).secret.decode())
    own.unlink()
    said = sentences(SecurityOptions("env:OWN_KEY", str(tmp_path)), Facts())
    assert len(said) == 2
    owned = (
        rf"^user \d+, who owns {tmp_path} and 1 more, can let in anybody; 'chown root {tmp_path} "
    )
    assert re.search(owned, said[1])


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a file be another user's than who looks."""
    if os.geteuid() == 0:
        os.chown(path, 4242, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)


def test_a_certificate_that_ends_soon_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_files, "new_certificate", partial(new_certificate, days=30))
    new_key(tmp_path, "hub", ("tower",))
    new_key(tmp_path, "s", ("store",))
    own = tmp_path / "s.key_secret"
    (tmp_path / "hub.key_secret").unlink()
    config = SecurityOptions(secret_key_file=str(own), allowed_keys=str(tmp_path))
    said = sentences(config, Facts())
    assert said[-1].startswith("the certificate of store key s ends in 29 days; 'dafka keys renew")
    monkeypatch.setattr(key_files, "new_certificate", partial(new_certificate, days=-0.5))
    renew(tmp_path, "s")
    found = check_security(config, Facts())[-1]
    assert found.severity is Severity.PROBLEM
    assert found.sentence == "the certificate of store key s has expired: no client talks to it"


def test_keys_that_no_node_starts_with_are_a_problem(tmp_path: Path) -> None:
    config = SecurityOptions(secret_key_file=str(tmp_path / "x"), allowed_keys=str(tmp_path))
    (found,) = check_security(config, Facts())
    assert found.severity is Severity.PROBLEM
    assert "must be a file that 'dafka keys new' made" in found.sentence
