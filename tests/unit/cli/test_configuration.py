"""Settings of commands from a file and from the environment."""

import os
from pathlib import Path

import click
import pytest

from dafka_core.cli import app, configuration
from dafka_core.cli.configuration import Found, read
from dafka_core.cli.flags import Option
from dafka_core.errors import ConfigError

assert app.__doc__  # with all commands it declares what may be set

KNOWN = {
    "produce": lambda: click.Command("produce", params=[Option(["--tower"]), Option(["--acks"])]),
    "checkpoint verify": lambda: click.Command("verify", params=[Option(["--json"])]),
}

FILE = """
profile = "home"
tower = ["a", "b:1:2"]
acks = 2

[commands.produce]
acks = 3

[commands."checkpoint verify"]
json = true

[profiles.home]
tower = "c"

[profiles.far]
acks = 4
[profiles.far.commands.produce]
acks = 5
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DAFKA_TOWER", "DAFKA_ACKS", "DAFKA_CONFIG", "DAFKA_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    file = Path("dafka.toml")
    file.write_text(FILE, encoding="utf-8")
    return file


def test_a_profile_counts_more_than_the_rest_and_a_section_more_than_what_is_for_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = read(None, None, KNOWN)
    assert home.find("tower", "produce") == Found("c", "dafka.toml [profiles.home]")
    assert home.find("acks", "produce") == Found("3", "dafka.toml [commands.produce]")
    assert home.find("acks") == Found("2", "dafka.toml")
    assert home.find("wire") is None
    verify = home.find("json", "checkpoint verify")
    assert verify == Found(True, "dafka.toml [commands.checkpoint verify]")
    far = read(None, "far", KNOWN)
    assert far.find("tower") == Found(["a", "b:1:2"], "dafka.toml")
    assert far.find("acks") == Found("4", "dafka.toml [profiles.far]")
    assert far.find("acks", "produce") == Found("5", "dafka.toml [profiles.far.commands.produce]")
    monkeypatch.setenv("DAFKA_PROFILE", "far")
    assert read(None, None, KNOWN).profile == "far"
    assert read(None, "home", KNOWN).profile == "home"


def test_the_file_is_the_one_named_or_here_or_the_users(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(None, None, KNOWN).path == path
    path.unlink()
    assert read(None, None, KNOWN).path is None
    users = Path("xdg/dafka/dafka.toml").absolute()
    users.parent.mkdir(parents=True)
    users.write_text("acks = 7", encoding="utf-8")
    assert read(None, None, KNOWN).path == users
    other = Path("other.toml")
    other.write_text("acks = 8", encoding="utf-8")
    monkeypatch.setenv("DAFKA_CONFIG", "other.toml")
    assert read(None, None, KNOWN).find("acks") == Found("8", "other.toml")
    assert read(str(users), None, KNOWN).find("acks") == Found("7", str(users))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("acks = 1\nx", "option 'config' = 'dafka.toml': is not TOML: Expected"),
        ("akcs = 1", "dafka.toml setting 'akcs' = 1: unknown option; did you mean 'acks'"),
        ("[comands.produce]", "unknown option; did you mean 'commands'"),
        ("acks = 0", "dafka.toml setting 'acks' = 0: must be at least 1"),
        ("acks = [1]", "dafka.toml setting 'acks' = [1]: must be a whole number"),
        ("json = 'yes'", "dafka.toml setting 'json' = 'yes': must be true or false"),
        ("profiles = 1", "dafka.toml setting 'profiles' = 1: must be a section"),
        (
            "[commands.prodcue]",
            "dafka.toml section 'prodcue' = '{...}': is not a command; did you mean 'prod",
        ),
        (
            "[commands.produce]\njson = true",
            "dafka.toml [commands.produce] setting 'json' = True: unknown option",
        ),
        (
            "[profiles.a.commands.produce]\ntower = 'x:y'",
            "dafka.toml [profiles.a.commands.produce] setting 'tower' = 'x:y': must be HOST",
        ),
        ("profile = ['home']", "'profile' = '['home']': dafka.toml does not define it"),
        ("profile = 'hme'\n[profiles.home]", "'profile' = 'hme': dafka.toml does not define it"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_place(
    path: Path, text: str, expected: str
) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read(None, None, KNOWN)
    assert expected in str(caught.value)


def test_a_file_that_is_named_must_be_there(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'config' = 'x\.toml': cannot be read: No such file"):
        read("x.toml", None, KNOWN)
    path.unlink()
    with pytest.raises(ConfigError, match="no configuration file was found; there are no profiles"):
        read(None, "far", KNOWN)


def test_a_file_of_another_user_is_believed_only_where_it_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="belongs to another user, or others may write it"):
        read(None, None, KNOWN)
    assert read("dafka.toml", None, KNOWN).path == path
    path.chmod(0o600)
    assert read(None, None, KNOWN).path == path
    if os.geteuid() == 0:  # only root can give a file away
        os.chown(path, 65_534, 0)
        with pytest.raises(ConfigError, match="belongs to another user"):
            read(None, None, KNOWN)


def test_a_misspelt_variable_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_ACSK", "2")
    monkeypatch.setenv("DAFKA_SOMETHING_ELSE", "2")
    [said] = configuration.misspelt_variables()
    assert said == "environment variable DAFKA_ACSK is not read; did you mean DAFKA_ACKS?"
