"""Keys over Flight: permitted clients and requests, trusted stores, and changes of keys."""

import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import flight

from dafka_core.config.node_options import NO_KEYS, KeyFiles
from dafka_core.config.topic_rules import parse_rules
from dafka_core.errors import (
    ConfigError,
    DafkaError,
    InvalidRequestError,
    NotAllowedError,
    StoreUnreachableError,
)
from dafka_core.flight.backup_requests import BackupRequest
from dafka_core.flight.limits import MAX_BATCH_BYTES
from dafka_core.flight.requests import (
    DescribeRequest,
    ForgetRequest,
    RetentionRequest,
)
from dafka_core.flight.server import FlightService
from dafka_core.flight.server_keys import ServerKeys
from dafka_core.flight.store_client import ClientKeys, StoreClient
from dafka_core.flight.store_location import StoreLocation, path_of, tcp_location
from dafka_core.model.records import TopicPartition
from dafka_core.security.key_files import (
    KEY_HEADER,
    SERVER_NAME,
    TlsPair,
    pem,
    read_public,
    tls_pair,
)
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import (
    BLOCKS,
    LARGEST,
    TOPIC,
    TP,
    Served,
    array,
    check,
    everything,
    short_directory,
    total,
)
from tests.key_files import KeyDirectory


@pytest.fixture
def keys(tmp_path: Path) -> KeyDirectory:
    made = KeyDirectory(tmp_path)
    made.allow("reader", "consume")
    made.allow("writer", "produce")
    made.allow("admin", "admin")
    made.allow("narrow", "consume", consume=(TOPIC,))
    made.allow("logs", "consume", consume=("logs.*",))
    made.allow("old", "produce", produce=("t",), addresses=("P",))
    return made


@pytest.fixture
def locked(keys: KeyDirectory, directory: Path) -> Iterator[Served]:
    with Served(directory, keys=keys.files("store")) as running:
        running.extend(5)
        yield running


@pytest.fixture(params=["unix", "tcp"])
def place(locked: Served, request: pytest.FixtureRequest) -> StoreLocation:
    found: StoreLocation = getattr(locked, request.param)
    return found


def read(client: StoreClient, end: int = 5) -> Any:
    return client.read(TP, 0, end, times=False, timeout_s=PATIENCE_S, **LARGEST)


def refusal(client: StoreClient) -> str:
    """Return the error of a call; "" if it is answered."""
    try:
        client.describe(timeout_s=PATIENCE_S)
    except DafkaError as error:
        return str(error)
    return ""


class KeptRules:
    """The rules of a store."""

    is_set, given_up = False, 0
    rules = parse_rules(f"{TOPIC}=1d hidden=2d hidden-*=3d *=4d")


def test_a_key_gets_the_rules_of_the_topics_that_it_may_know(
    keys: KeyDirectory, locked: Served
) -> None:
    locked.context.retention = KeptRules()  # type: ignore[assignment]
    locked.extend(1, topic="hidden", partition="P")
    for name, expected in (
        ("narrow", [f"{TOPIC}=1d", "*=4d"]),
        ("admin", list(map(str, KeptRules.rules))),
    ):
        client = locked.client(locked.tcp, keys.files(name))
        (answer,) = client.ask(PATIENCE_S, RetentionRequest())
        assert list(answer.rules) == expected


def own_partition(keys: KeyDirectory, name: str, topic: str = TOPIC) -> TopicPartition:
    prefix = read_public(keys.away / f"{name}.key").permissions.prefix
    return TopicPartition(topic, prefix + "0" * 16)


def test_owners_of_keys_read_and_write_over_either_way(
    keys: KeyDirectory, locked: Served, place: StoreLocation
) -> None:
    assert locked.location.locations[1].startswith("grpc+tls://")
    reader = locked.client(place, keys.files("reader"))
    check(read(reader), 0, 5)
    with locked.client(place, keys.files("writer")).put(
        own_partition(keys, "writer"), 0, timeout_s=PATIENCE_S
    ) as put:
        put.write(array(0, 3))
        assert put.finish(PATIENCE_S) == 3
    held = reader.heads(None, timeout_s=PATIENCE_S)
    assert {head.end for head in held} == {3, 5}
    assert {facts.end for facts in reader.facts(None, timeout_s=PATIENCE_S)} == {3, 5}


def test_a_stranger_is_told_what_to_do_and_nothing_else(keys: KeyDirectory, locked: Served) -> None:
    with (
        StoreClient(locked.tcp) as without,
        pytest.raises(ConfigError, match="must be set, and allowed_keys: the store at"),
    ):
        without.heads(None, timeout_s=PATIENCE_S)
    keys.make("other", "consume", "admin")
    why = "copy this client's NAME.key to its directory of allowed keys"
    assert why in refusal(locked.client(locked.tcp, keys.files("other")))


def test_a_key_that_is_not_allowed_is_refused_at_the_socket(
    keys: KeyDirectory, locked: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients there name their keys; other users can't open the socket."""
    assert Path(path_of(locked.unix.locations[0]) or "").stat().st_mode & 0o077 == 0
    with StoreClient(locked.unix) as without:
        assert "it lets in owners of keys only: set secret_key_file" in refusal(without)
    keys.make("other", "consume", "admin")
    with caplog.at_level(logging.WARNING, "dafka.security"):
        for _ in range(3):
            client = locked.client(locked.unix, keys.files("other"))
            assert "does not know this client's key" in refusal(client)
    told = [each for each in caplog.messages if "does not know this client's key" in each]
    assert len(told) == 1
    assert locked.service.context.keys is not None
    assert locked.service.context.keys.refusal_count >= 3


def plain(locked: Served, keys: KeyDirectory, own: TlsPair | None) -> flight.FlightClient:
    """A plain client with the store's certificate, and optionally its own."""
    roots = pem(read_public(keys.away / "store.key").certificate)
    uri = locked.tcp.locations[0]
    pair = {} if own is None else {"cert_chain": own.certificate, "private_key": own.private_key}
    return flight.FlightClient(uri, tls_root_certs=roots, override_hostname=SERVER_NAME, **pair)


CALLS: list[Callable[[flight.FlightClient], object]] = [
    lambda client: list(client.list_flights(b"")),
    lambda client: list(client.list_actions()),
    lambda client: client.do_get(flight.Ticket(b"")).read_all(),
    lambda client: list(client.do_action(flight.Action("dafka.heads.v1", b""))),
    lambda client: client.get_flight_info(flight.FlightDescriptor.for_path(TOPIC)),
    lambda client: client.get_schema(flight.FlightDescriptor.for_path(TOPIC)),
    lambda client: client.do_exchange(flight.FlightDescriptor.for_path(TOPIC))[1].read_all(),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", [None, "other"])
def test_no_call_is_answered_without_a_certificate_that_is_known(
    call: Callable[[flight.FlightClient], object],
    name: str | None,
    locked: Served,
    keys: KeyDirectory,
) -> None:
    keys.make("other", "consume", "admin")
    own = None if name is None else tls_pair(keys.pair(name).secret)
    # pyarrow's client keeps only the sentence of GetSchema's error.
    errors = (flight.FlightUnavailableError, OSError)
    with plain(locked, keys, own) as client, pytest.raises(errors, match="Socket closed"):
        call(client)


def test_no_header_names_another_key_over_tls(keys: KeyDirectory, locked: Served) -> None:
    own = tls_pair(keys.pair("reader").secret)
    headers = [(KEY_HEADER.encode(), keys.pair("admin").public)]
    action = flight.Action(ForgetRequest.action, ForgetRequest("0" * 32).packed())
    with (
        plain(locked, keys, own) as client,
        pytest.raises(flight.FlightUnauthorizedError, match="key reader may consume, and not"),
    ):
        list(client.do_action(action, flight.FlightCallOptions(headers=headers)))


def test_a_key_is_let_in_while_others_read(keys: KeyDirectory, large: Path) -> None:
    """A new server takes the port, and the previous one completes its requests."""
    keys.make("new", "consume")
    with Served(large, keys=keys.files("store")) as locked:
        reading = everything(locked.client(locked.tcp, keys.files("reader")))
        first = next(reading)
        port, client = locked.port, locked.client(locked.tcp, keys.files("new"))
        assert not answers(client)
        for _ in range(2):
            keys.let_in("new")
            wait_until(lambda: answers(client))
            keys.shut_out("new")
            wait_until(lambda: not answers(client))
        assert locked.port == port
        assert total((first, *reading)) == BLOCKS * 200


def test_actions_succeed_while_a_store_takes_over_keys(keys: KeyDirectory, locked: Served) -> None:
    server = locked.service._servers[0]
    client = locked.client(locked.tcp, keys.files("reader"))
    asked = [0, 0]

    def ask(index: int, ended: threading.Event) -> None:
        while not ended.is_set():
            asked[index] += len(client.heads(None, timeout_s=PATIENCE_S))

    ended = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask, index, ended) for index in range(2)]
        try:
            for _ in range(10):
                server = locked.service.replace(server, locked.location.locations[1])
                # The second action of each begins after the takeover.
                least = [each + 2 for each in asked]
                wait_until(lambda least=least: all(map(int.__ge__, asked, least)))  # type: ignore[misc]
        finally:
            ended.set()
        for each in asking:
            each.result()


def test_an_action_that_is_repeated_ends_in_time(
    keys: KeyDirectory, locked: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt took a part of the time before the takeover ended it."""
    timeouts: list[float] = []
    original = ClientKeys.call_options

    def noted(self: ClientKeys, timeout_s: float | None = None) -> Any:
        timeouts.append(timeout_s or math.inf)
        return original(self, timeout_s)

    def cut(asked: flight.FlightClient, action: Any, options: Any) -> Any:
        if len(timeouts) > 1:
            return asked.do_action(action, options)
        time.sleep(0.5)
        raise flight.FlightUnavailableError("failed to connect")

    client = locked.client(locked.tcp, keys.files("reader"))
    client.heads(None, timeout_s=PATIENCE_S)  # it connects
    monkeypatch.setattr(ClientKeys, "call_options", noted)
    real = client._client
    monkeypatch.setattr(client, "_client", SimpleNamespace(do_action=partial(cut, real)))
    client.heads(None, timeout_s=PATIENCE_S)
    first, second = timeouts
    assert second <= first - 0.5
    monkeypatch.undo()


def test_a_failed_takeover_is_tried_again(
    keys: KeyDirectory, locked: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([RuntimeError("can't start new thread"), OSError(24, "Too many open files")])
    original = FlightService.replace

    def failing(self: FlightService, *arguments: Any) -> Any:
        if failure := next(failures, None):
            raise failure
        return original(self, *arguments)

    monkeypatch.setattr(FlightService, "replace", failing)
    keys.allow("late", "consume")
    client = locked.client(locked.tcp, keys.files("late"))
    wait_until(lambda: not refusal(client))
    assert next(failures, None) is None


def test_what_is_said_in_the_clear_is_not_heard(locked: Served) -> None:
    host, port = "127.0.0.1", locked.port
    with StoreClient(StoreLocation("", (tcp_location(host, port),))) as client:
        assert "if it has keys, set secret_key_file and allowed_keys here" in refusal(client)


def test_a_key_allows_what_its_roles_and_patterns_do(keys: KeyDirectory, locked: Served) -> None:
    logs = keys.files("logs")
    locked.extend(2, topic="logs.a")
    client = locked.client(keys=logs)
    assert [head.topic for head in client.heads(None, timeout_s=PATIENCE_S)] == ["logs.a"]
    assert [each.topic for each in client.facts(None, timeout_s=PATIENCE_S)] == ["logs.a"]
    news = client.watch(None, "", wait_s=0, timeout_s=PATIENCE_S)
    assert [head.topic for head in news.heads] == ["logs.a"]
    locked.extend(6)
    locked.extend(3, topic="logs.a")
    changed = client.watch(None, news.cursor, wait_s=0, timeout_s=PATIENCE_S)
    assert [(head.topic, head.end) for head in changed.heads] == [("logs.a", 3)]
    asked: list[tuple[Callable[[], object], str]] = [
        (lambda: list(read(client)), "consume 't'"),
        (lambda: client.heads([TOPIC], timeout_s=PATIENCE_S), "know of 't'"),
        (lambda: client.facts(TOPIC, timeout_s=PATIENCE_S), "know of 't'"),
        (lambda: client.forget("0" * 32, timeout_s=PATIENCE_S), "administer stores"),
        (lambda: list(client.get(BackupRequest().packed(), iter, PATIENCE_S)), "administer stores"),
    ]
    for ask, what in asked:
        with pytest.raises(NotAllowedError, match=f"may consume 'logs.*', and not {what}"):
            ask()
    info = flight.FlightDescriptor.for_path(TOPIC)
    with (
        plain(locked, keys, tls_pair(keys.pair("logs").secret)) as other,
        pytest.raises(flight.FlightUnauthorizedError, match="and not know of 't'"),
    ):
        other.get_flight_info(info)


def test_a_key_writes_its_own_partitions_only(keys: KeyDirectory, locked: Served) -> None:
    def write(name: str, tp: TopicPartition) -> None:
        client = locked.client(keys=keys.files(name))
        with client.put(tp, locked.log.end(tp), timeout_s=PATIENCE_S) as put:
            put.write(array(0, 1))
            put.finish(PATIENCE_S)

    with pytest.raises(NotAllowedError, match="write partition P, which is not its own"):
        write("writer", TP)
    with pytest.raises(NotAllowedError, match="not produce to 't'"):
        write("reader", own_partition(keys, "reader"))
    with pytest.raises(NotAllowedError, match="not produce to 'u'"):
        write("old", own_partition(keys, "old", "u"))
    assert locked.log.end(TP) == 5
    write("old", TP)
    assert locked.log.end(TP) == 6


def shut_out(keys: KeyDirectory) -> None:
    keys.shut_out("reader")


def take_role(keys: KeyDirectory) -> None:
    path = keys.allowed / "reader.key"
    path.write_text(path.read_text().replace('roles = "consume"', 'roles = "tower"'))


@pytest.mark.parametrize(
    ("change", "why"),
    [(shut_out, "does not know|copy this client's NAME.key"), (take_role, "may tower, and not")],
)
def test_what_is_taken_from_a_key_ends_what_it_reads(
    change: Callable[[KeyDirectory], None], why: str, keys: KeyDirectory, large: Path
) -> None:
    """A read, and a watch."""
    with Served(large, keys=keys.files("store")) as locked:
        for place in (locked.tcp, locked.unix):
            client = locked.client(place, keys.files("reader"))
            reading = everything(client, max_bytes=MAX_BATCH_BYTES // 64)
            next(reading)
            cursor = client.watch([TOPIC], "", wait_s=0, timeout_s=PATIENCE_S).cursor
            change(keys)
            with pytest.raises((NotAllowedError, StoreUnreachableError), match=why):
                client.watch([TOPIC], cursor, wait_s=60, timeout_s=PATIENCE_S)
            with pytest.raises((NotAllowedError, StoreUnreachableError), match=why):
                list(reading)
            keys.let_in("reader")
            wait_until(lambda client=client: answers(client))  # type: ignore[misc]


def answers(client: StoreClient) -> bool:
    try:
        return bool(client.describe(timeout_s=PATIENCE_S)) and bool(list(everything(client)))
    except DafkaError:
        return False


def test_a_put_ends_when_its_key_is_shut_out(keys: KeyDirectory, locked: Served) -> None:
    tp = own_partition(keys, "writer")
    client = locked.client(keys=keys.files("writer"))

    def write() -> None:
        with client.put(tp, 0, timeout_s=PATIENCE_S) as put:
            put.write(array(0, 1))
            put.wait_durable(1, timeout_s=PATIENCE_S)
            keys.shut_out("writer")

            def is_refused() -> bool:
                put.write(array(0, 1))
                put.wait_durable(put.end, timeout_s=PATIENCE_S)
                return False

            wait_until(is_refused)

    with pytest.raises(StoreUnreachableError, match="does not know this client's key"):
        write()


def test_a_file_without_a_certificate_lets_nobody_in_by_tls(
    keys: KeyDirectory, locked: Served
) -> None:
    path = keys.allowed / "reader.key"
    lines = [line for line in path.read_text().splitlines() if "certificate =" not in line]
    path.write_text("\n".join([*lines, ""]))
    client = locked.client(locked.tcp, keys.files("reader"))
    wait_until(lambda: "'dafka keys renew NAME' writes it" in refusal(client))
    keys.let_in("reader")
    wait_until(lambda: not refusal(client))


def test_a_request_that_is_none_is_refused_as_without_keys(
    keys: KeyDirectory, locked: Served
) -> None:
    client = locked.client(keys=keys.files("reader"))
    with pytest.raises(InvalidRequestError):
        list(client.get(b"x", lambda received: received, PATIENCE_S))
    assert client.ask(PATIENCE_S, DescribeRequest())[0].store == locked.address


def without(text: str, keys: KeyDirectory) -> KeyFiles:
    path = keys.allowed / "store.key"
    lines = [line for line in path.read_text().splitlines() if text not in line]
    path.write_text("\n".join([*lines, ""]))
    return keys.files("store")


def stranger(keys: KeyDirectory) -> KeyFiles:
    keys.make("away", "store")
    return keys.files("away")


def consumer(keys: KeyDirectory) -> KeyFiles:
    return keys.files("reader")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (stranger, "must contain this store's own key with role store"),
        (consumer, "must contain this store's own key with role store"),
        (
            lambda keys: without("certificate =", keys),
            r"store.key lacks this key's certificate.*: run 'dafka keys renew NAME' where its",
        ),
    ],
)
def test_a_store_that_no_client_could_trust_does_not_start(
    spoil: Callable[[KeyDirectory], KeyFiles], why: str, keys: KeyDirectory
) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        ServerKeys(spoil(keys))
    assert error.value.option == "allowed_keys"


def test_a_false_store_is_told_nothing(keys: KeyDirectory, tmp_path: Path) -> None:
    """A server with keys of its own making at a store's address."""
    reader, others = keys.files("reader"), KeyDirectory(tmp_path / "others")
    with short_directory() as directory, Served(directory, keys=others.files("store")) as false:
        client = false.client(false.tcp, reader)
        assert "does not belong to a store in this client's directory" in refusal(client)
        # Once its key is allowed as a store's, it is a store.
        (others.allowed / "store.key").rename(keys.allowed / "second.key")
        wait_until(lambda: "copy this client's NAME.key" in refusal(client))
    # Refused without TLS, too, whatever the location says.
    with short_directory() as directory, Served(directory) as false:
        tls = StoreLocation("", (tcp_location("127.0.0.1", false.port, is_tls=True),))
        for location in (false.tcp, tls):
            why = "it does not use TLS, as stores with keys do"
            assert why in refusal(false.client(location, reader))


def test_a_key_that_is_not_a_stores_makes_no_store(keys: KeyDirectory, locked: Served) -> None:
    path = keys.allowed / "store.key"
    path.write_text(path.read_text().replace('roles = "store"', 'roles = "consume, admin"'))
    with pytest.raises(ConfigError, match="no key with role store and a certificate"):
        ClientKeys(keys.files("reader")).connect("grpc+tls://127.0.0.1:1", b"")
    client = locked.client(locked.tcp, keys.files("reader"))
    wait_until(lambda: "no store can be trusted" in refusal(client))


def test_a_store_is_asked_by_tls_however_it_is_named(keys: KeyDirectory, locked: Served) -> None:
    named = StoreLocation("", (tcp_location("127.0.0.1", locked.port),))
    assert refusal(locked.client(named, keys.files("reader"))) == ""


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
            lambda: "does not belong to a store in this client's directory" in refusal(client)
        )
        assert total((first, *reading)) == BLOCKS * 200
        (keys.allowed / "store.key").write_text(own)
        wait_until(lambda: not refusal(client))


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
