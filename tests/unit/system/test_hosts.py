"""Host names, addresses and ports, of IPv4 and IPv6."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.system.hosts import (
    HostPort,
    bracketed,
    host_port,
    is_any,
    is_host,
    is_ipv6,
    is_loopback,
    listen,
    numeric_host,
    parse_endpoint,
    plain,
    resolve,
)

NAMES = ["localhost", "node-1.example.org", "a_b", "7", "a.b-c.example."]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:19092", "127.0.0.1", 19_092),
        ("kafka.example.org", "kafka.example.org", 9092),
        ("[::1]:0", "::1", 0),
        ("[::1]", "::1", 9092),
        ("[fe80::1%br-lan.7]:1", "fe80::1%br-lan.7", 1),
        ("*:65535", "*", 65_535),
    ],
)
def test_a_host_may_have_a_port(text: str, host: str, port: int) -> None:
    found = host_port(text, 9092)
    assert found == HostPort(host, port)
    assert host_port(str(found)) == found
    assert parse_endpoint(f"tcp://{found}") == found


@given(st.ip_addresses() | st.sampled_from(NAMES), st.integers(0, 65_535))
def test_hosts_and_ports_survive(host: object, port: int) -> None:
    where = HostPort(str(host), port)
    assert host_port(str(where)) == where
    assert is_host(bracketed(where.host))


@pytest.mark.parametrize(
    "text",
    [
        "9092",
        *("", ":1", "a:", "a:b", "a:65536", "a:-1", "a b", "9092:x", "a:1:2", "tcp://a:1", "ä:1"),
        *("::1", "::1:5", "[::1", "[::1]x", "[]:1", "[a b]:1", "[1.2.3.4]:1", "[12345::]:1"),
        *("[:]:1", "[fe80::1%]:1", "-a:1", "_a:1", ".a:1", "a..b:1", f"{'x' * 64}:1", "a\n:1"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be HOST:PORT, as 127.0.0.1:9092; port 0 lets"):
        host_port(text, 9092)


def test_an_endpoint_needs_a_port_and_zeromqs_scheme() -> None:
    for text in ("tcp://a", "a:1", "udp://a:1", "tcp://tcp://a:1"):
        with pytest.raises(ValueError, match="must be"):
            parse_endpoint(text)


def test_addresses_are_classified_in_each_of_their_forms() -> None:
    for host in ("127.0.0.1", "127.8.9.1", "::1", "[::1]", "::ffff:127.0.0.1", "localhost"):
        assert is_loopback(host)
        assert not is_any(host)
    for host in ("10.0.0.1", "[fe80::1%eth0]", "::ffff:10.0.0.1", "node-7.example"):
        assert not is_loopback(host)
        assert not is_any(host)
    for host in ("*", "0.0.0.0", "::", "[::]"):
        assert is_any(host)
        assert not is_loopback(host)
    assert plain("::ffff:10.0.0.7") == "10.0.0.7"
    assert plain("[2001:DB8:0::1]") == "2001:db8::1"
    assert plain("node-7.example") == "node-7.example"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with addresses of IPv6, of both families and of none."""
    hosts = {"six": ["::1"], "both": ["::1", "127.0.0.1"]}
    real = socket.getaddrinfo

    def resolver(host: str, *arguments: object, **named: object) -> list[object]:
        if host == "nowhere":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        addresses = hosts.get(host, [host])
        return [found for each in addresses for found in real(each, *arguments, **named)]  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolver)


@pytest.mark.usefixtures("names")
def test_ipv4_is_the_first_family_of_a_name() -> None:
    assert [numeric_host(each[4]) for each in resolve("both")] == ["127.0.0.1", "::1"]
    names = ("both", "six", "nowhere", "[::1]", "127.0.0.1")
    assert [name for name in names if is_ipv6(name)] == ["six", "[::1]"]


def test_the_scope_of_a_link_belongs_to_its_address() -> None:
    index, name = socket.if_nameindex()[0]
    assert numeric_host(("fe80::1", 5, 0, index)) == f"fe80::1%{name}"
    assert numeric_host(("fe80::1%x", 5, 0, index)) == "fe80::1%x"
    assert numeric_host(("::1", 5, 0, 0)) == "::1"
    assert numeric_host(("127.0.0.1", 5)) == "127.0.0.1"


@contextlib.contextmanager
def alone(host: str, others: set[str]) -> Iterator[int]:
    """Listen at a port at which no other program listens on other addresses."""
    while True:
        with contextlib.ExitStack() as opened:
            port: int = opened.enter_context(listen(HostPort(host, 0))).getsockname()[1]
            try:
                for other in others:
                    family = socket.AF_INET6 if ":" in other else socket.AF_INET
                    opened.enter_context(socket.socket(family)).bind((other, port))
            except OSError:
                continue
            yield port
            return


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize(
    ("host", "clients"),
    [
        ("*", {"127.0.0.1", "::1"}),
        ("::", {"127.0.0.1", "::1"}),
        ("0.0.0.0", {"127.0.0.1"}),
        ("::1", {"::1"}),
        ("six", {"::1"}),
        ("both", {"127.0.0.1"}),
    ],
)
def test_a_listener_takes_clients_of_its_families(host: str, clients: set[str]) -> None:
    with alone(host, {"127.0.0.1", "::1"} - clients) as port:
        found = set()
        for client in ("127.0.0.1", "::1"):
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection((client, port), timeout=10).close()
                found.add(client)
        assert found == clients
        with pytest.raises(OSError, match="in use"):
            listen(HostPort(host, port))
