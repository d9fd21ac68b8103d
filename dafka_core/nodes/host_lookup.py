"""Whether the towers' names resolve: ZeroMQ, which connects to them, does not say."""

from __future__ import annotations

import ipaddress
import socket as sockets
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

_NEVER: Final = (sockets.EAI_NONAME, sockets.EAI_NODATA)
"""There is no such name; other failures are perhaps over soon."""


class HostLookup:
    """Looks names up beside what the caller does: that may take long, and no signal ends it.

    Calls ``on_failure()`` when a name does not resolve.
    """

    def __init__(self, hosts: Iterable[str], on_failure: Callable[[], None]) -> None:
        self._hosts = {*hosts}
        self._on_failure = on_failure
        self._failures: dict[str, int | None] = {}
        for host in self._hosts:
            if not _is_address(host):
                threading.Thread(
                    target=self._look, args=(host,), name="dafka-hosts", daemon=True
                ).start()

    @property
    def unknown(self) -> list[str]:
        """The names that do not resolve, as far as is known by now."""
        return sorted(self._failures)

    @property
    def in_vain(self) -> bool:
        """Whether none of the hosts exists."""
        failures = dict(self._failures)
        return len(failures) == len(self._hosts) and all(
            code in _NEVER for code in failures.values()
        )

    def _look(self, host: str) -> None:
        try:
            sockets.getaddrinfo(host, None)
        except OSError as error:
            self._failures[host] = error.errno
            self._on_failure()


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host.strip("[]")))
    return host.startswith("[")
