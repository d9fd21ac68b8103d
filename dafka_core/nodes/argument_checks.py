"""What applications pass to nodes, checked before anything is done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dafka_core.errors import ConfigError, ProtocolError


def check_argument(name: str, value: Any, check: Callable[[Any], None]) -> None:
    """Raises ConfigError, naming the argument, if ``check`` finds that no message could have it."""
    try:
        check(value)
    except ProtocolError as error:
        raise ConfigError(name, value, error.reason) from None
