"""Clients with keys: the stores that they trust, and their errors for others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dafka_core.config.node_options import NO_KEYS, KeyFiles
from dafka_core.errors import ConfigError, DafkaError, StoreUnreachableError
from dafka_core.flight.store_client import ClientKeys, StoreClient
from dafka_core.flight.store_location import StoreLocation, tcp_location
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import BLOCKS, Served, everything, short_directory, total
from tests.key_files import KeyDirectory


@pytest.fixture
def keys(tmp_path: Path) -> KeyDirectory:
    made = KeyDirectory(tmp_path / "cluster")
    made.allow("reader", "consume")
    return made


@pytest.fixture
def locked(keys: KeyDirectory, directory: Path) -> Iterator[Served]:
    with Served(directory, keys=keys.files("store")) as running:
        yield running


def refusal(location: StoreLocation, files: KeyFiles) -> str:
    with StoreClient(location, files) as client:
        try:
            client.describe(timeout_s=PATIENCE_S)
        except DafkaError as error:
            return str(error)
    return ""


def test_a_false_store_is_told_nothing(keys: KeyDirectory, tmp_path: Path) -> None:
    """A server with keys of its own making at a store's address."""
    others = KeyDirectory(tmp_path / "others")
    with short_directory() as directory, Served(directory, keys=others.files("store")) as false:
        assert "does not belong to a store in this client's directory" in refusal(
            false.tcp, keys.files("reader")
        )
        # Once its key is allowed as a store's, it is a store.
        (others.allowed / "store.key").rename(keys.allowed / "second.key")
        wait_until(
            lambda: "copy this client's NAME.key" in refusal(false.tcp, keys.files("reader"))
        )
    # Refused without TLS, too, whatever the location says.
    with short_directory() as directory, Served(directory) as false:
        for location in (
            false.tcp,
            StoreLocation("", (tcp_location("127.0.0.1", false.port, is_tls=True),)),
        ):
            assert "it does not use TLS, as stores with keys do" in refusal(
                location, keys.files("reader")
            )


def test_a_key_that_is_not_a_stores_makes_no_store(keys: KeyDirectory, locked: Served) -> None:
    path = keys.allowed / "store.key"
    path.write_text(path.read_text().replace('roles = "store"', 'roles = "consume, admin"'))
    with pytest.raises(ConfigError, match="no key with role store and a certificate"):
        ClientKeys(keys.files("reader")).connect("grpc+tls://127.0.0.1:1", b"")
    wait_until(lambda: "no store can be trusted" in refusal(locked.tcp, keys.files("reader")))


def test_a_store_is_asked_by_tls_however_it_is_named(keys: KeyDirectory, locked: Served) -> None:
    named = StoreLocation("", (tcp_location("127.0.0.1", locked.port),))
    assert refusal(named, keys.files("reader")) == ""


def test_a_store_that_is_trusted_no_more_is_not_asked_again(
    keys: KeyDirectory, large: Path
) -> None:
    """A read in progress is completed: the store was allowed when it began."""
    keys.allow("second", "store")
    with Served(large, keys=keys.files("store")) as locked:
        client = locked.client(locked.tcp, keys.files("reader"))
        reading = everything(client)
        first = next(reading)
        # The store has a directory of its own on its machine; here they share one.
        own = (keys.allowed / "store.key").read_text()
        (keys.allowed / "store.key").unlink()
        wait_until(
            lambda: _is_refused(client, "does not belong to a store in this client's directory")
        )
        assert total((first, *reading)) == BLOCKS * 200
        (keys.allowed / "store.key").write_text(own)
        wait_until(lambda: not _is_refused(client, ""))


def _is_refused(client: StoreClient, why: str) -> bool:
    try:
        client.describe(timeout_s=PATIENCE_S)
    except StoreUnreachableError as error:
        return why in error.why
    return False


def test_a_socket_of_another_user_is_not_used(
    keys: KeyDirectory, locked: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = locked.unix.locations[0]
    known = ClientKeys(keys.files("reader"))
    assert known.may_use(uri)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert not known.may_use(uri)
    assert ClientKeys(NO_KEYS).may_use(uri)
    assert not ClientKeys(NO_KEYS).may_use("grpc+unix:///nowhere/flight.sock")


def test_a_handshake_that_fails_writes_nothing_to_stderr(locked: Served) -> None:
    """Neither the client's library nor the store logs it: strangers could fill the log."""
    program = (
        "import sys\n"
        "from dafka_core.flight.store_client import StoreClient\n"
        "from dafka_core.flight.store_location import StoreLocation\n"
        "client = StoreClient(StoreLocation('', (sys.argv[1],)))\n"
        "try: client.describe(timeout_s=9)\n"
        "except Exception as error: print(type(error).__name__)\n"
    )
    uri = tcp_location("127.0.0.1", locked.port)
    found = subprocess.run(
        [sys.executable, "-c", program, uri], capture_output=True, text=True, check=True
    )
    assert (found.stdout, found.stderr) == ("StoreUnreachableError\n", "")


@pytest.mark.parametrize(
    ("spoil", "option"),
    [
        (lambda keys: Path(keys.files("reader").secret_key_file).unlink(), "secret_key_file"),
        (lambda keys: (keys.allowed / "x.key").write_text("nothing"), "allowed_keys"),
    ],
)
def test_wrong_keys_are_an_error_before_anything_is_said(
    spoil: Callable[[KeyDirectory], object], option: str, keys: KeyDirectory, locked: Served
) -> None:
    spoil(keys)
    with pytest.raises(ConfigError) as error:
        StoreClient(locked.tcp, keys.files("reader"))
    assert error.value.option == option
