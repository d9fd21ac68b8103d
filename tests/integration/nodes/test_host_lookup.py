"""Names of towers that do not resolve."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from dafka_core import Reader, TowerNotFoundError
from dafka_core.nodes.host_lookup import HostLookup
from dafka_core.testing import wait_until

LONG_S = 600.0


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the system says of some names; all others resolve."""
    failures: dict[str, int] = {}

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> list[Any]:
        if host in failures:
            raise socket.gaierror(failures[host], "not now")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return failures


def test_a_tower_that_is_no_host_is_named_at_once(resolver: dict[str, int]) -> None:
    resolver |= {"nowhere": socket.EAI_NONAME, "nor-there": socket.EAI_NONAME}
    says = r"within 0(\.\d)? s, and there is no host nor-there, nowhere; correct the name"
    with pytest.raises(TowerNotFoundError, match=says) as refused:
        Reader(tower="nowhere:1:2,nor-there:1:2", tower_timeout_s=LONG_S)
    assert refused.value.unknown_hosts == ("nor-there", "nowhere")


def test_another_tower_is_waited_for(resolver: dict[str, int]) -> None:
    resolver |= {"nowhere": socket.EAI_NONAME}
    with pytest.raises(TowerNotFoundError, match=r"within 0\.3 s, and there is no host nowhere;"):
        Reader(tower="nowhere:1:2,127.0.0.1:1:2", tower_timeout_s=0.3)


def test_a_name_that_may_resolve_soon_is_waited_for(resolver: dict[str, int]) -> None:
    resolver |= {"later": socket.EAI_AGAIN}
    heard: list[None] = []
    names = HostLookup(
        ["later", "127.0.0.1", "[::1]", "[fe80::1%eth0]"], lambda: heard.append(None)
    )
    wait_until(lambda: heard)
    assert names.unknown == ["later"]
    assert not names.in_vain
    assert not HostLookup(["localhost"], lambda: None).in_vain
