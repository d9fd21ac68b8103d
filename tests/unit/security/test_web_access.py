"""Access over HTTP."""

import logging
import stat
from pathlib import Path

import pytest

from dafka_core.errors import ConfigError
from dafka_core.security.throttles import MOST_WRONG
from dafka_core.security.web_access import Answer, Door, bearer, is_own_name, new_token, write_token


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_token(tmp_path / "token")
    return tmp_path / "token"


def door_of(file: Path) -> Door:
    return Door("the console", "token_file", str(file))


def replace(file: Path, text: str, mode: int = 0o600) -> None:
    made = file.with_suffix(".new")
    made.write_text(text)
    made.chmod(mode)
    made.replace(file)


def test_a_token_file_is_private_and_created_once(file: Path) -> None:
    token = file.read_text().strip()
    assert len(token) == len(new_token()) == 43
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_token(file)
    assert file.read_text().strip() == token


def test_only_the_token_is_admitted(file: Path) -> None:
    door = door_of(file)
    token = file.read_text().strip()
    assert door.judge(token, "10.0.0.1") is Answer.RIGHT
    for wrong in ("", token[:-1], f"{token}x", "\udcff", "ä"):
        assert door.judge(wrong, "10.0.0.2") is Answer.WRONG
    made = Door("the console", "token_file")
    assert made.judge(made.token, "10.0.0.1") is Answer.RIGHT
    assert made.token != Door("the console", "token_file").token


def test_guessing_is_limited(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    door, token = door_of(file), file.read_text().strip()
    with caplog.at_level(logging.WARNING, "dafka.security"):
        for _ in range(MOST_WRONG):
            assert door.judge("wrong", "10.0.0.1") is Answer.WRONG
        for _ in range(100):
            assert door.judge("wrong", "10.0.0.1") is Answer.TOO_MANY
    # Not even the right one, or guessing could continue.
    assert door.judge(token, "10.0.0.1") is Answer.TOO_MANY
    assert door.judge(token, "10.0.0.2") is Answer.RIGHT
    assert [each.getMessage() for each in caplog.records] == [
        "the console: a wrong token from 10.0.0.1 (1 of at most 10 in a minute)",
        "the console: a wrong token from 10.0.0.1 (10 of at most 10 in a minute)",
    ]


def test_a_changed_token_applies_at_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    door, old = door_of(file), file.read_text().strip()
    signed = door.sign("text")
    assert door.sign("text") == signed != door.sign("text ")
    replace(file, "another-token-of-mine\n")
    assert door.judge(old, "10.0.0.1") is Answer.WRONG
    assert door.judge("another-token-of-mine", "10.0.0.1") is Answer.RIGHT
    assert door.sign("text") != signed
    replace(file, f"{old}\n", 0o644)
    assert door.judge("another-token-of-mine", "10.0.0.3") is Answer.WRONG
    for _ in range(3):
        assert door.judge(old, "10.0.0.1") is Answer.WRONG
        assert door.judge("", "10.0.0.1") is Answer.WRONG
        assert door.sign("text") != signed
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    cure = f"'chmod 600 {file}', and replace its secret if they have read it"
    why = f"{file} can be read by others: {cure}; no request is admitted"
    assert told == [f"the console: {why}"]
    replace(file, f"{old}\n")
    assert door.sign("text") == signed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "16 or more characters"),
        ("short", "16 or more characters"),
        ("two words of a token", "without spaces"),
        ("x" * 10_000, "16 or more characters"),
        ("ä" * 20, "16 or more characters"),
    ],
)
def test_files_without_a_token(file: Path, text: str, why: str) -> None:
    replace(file, text)
    with pytest.raises(ConfigError, match=why) as refused:
        door_of(file)
    assert refused.value.option == "token_file"
    assert text[:5] not in str(refused.value) or not text


def test_unreadable_token_files(tmp_path: Path) -> None:
    for each in (tmp_path / "missing", tmp_path, Path("\0")):
        with pytest.raises(ConfigError, match=r"dafka keys token FILE|read by others"):
            door_of(each)


def test_bearer_tokens() -> None:
    assert bearer("Bearer x") == bearer("bearer  x ") == "x"
    for other in ("", "Bearer", "Bearer ", "Basic x", "x"):
        assert bearer(other) is None


@pytest.mark.parametrize(
    ("host", "is_here", "is_elsewhere"),
    [
        ("localhost:1", True, True),
        ("LOCALHOST", True, True),
        ("127.0.0.1:1", True, True),
        ("[::1]:1", True, True),
        ("10.0.0.1", False, True),
        ("evil.example:1", False, False),
        ("localhost.evil.example", False, False),
        ("", False, False),
        ("[", False, False),
    ],
)
def test_foreign_host_names_are_refused(host: str, is_here: bool, is_elsewhere: bool) -> None:
    assert is_own_name(host, ("localhost",), is_local=True) is is_here
    assert is_own_name(host, ("localhost",), is_local=False) is is_elsewhere
