"""The options by which a node knows who it is, and whom it lets in (docs/security.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dafka_core.config.options import Options, option, parse_bool
from dafka_core.errors import ConfigError

KEY_ENVIRONMENT: Final = "DAFKA_"
"""Before the name of an option, in capitals: where commands and Spark's driver find their key."""

INSECURE_ENVIRONMENT: Final = "DAFKA_INSECURE"


class KeyFiles(NamedTuple):
    """Where a node's own secret key is, and the keys that it trusts; both empty for none."""

    secret_key_file: str = ""
    allowed_keys: str = ""


NO_KEYS: Final = KeyFiles()


def keys_in(options: Mapping[str, Any]) -> KeyFiles:
    """Those among options that may not have been checked yet."""
    return KeyFiles(*(str(options.get(name) or "") for name in KeyFiles._fields))


def keys_of_environment() -> dict[str, str]:
    """The options that the environment has of them."""
    names = {name: os.environ.get(KEY_ENVIRONMENT + name.upper()) for name in KeyFiles._fields}
    return {name: value for name, value in names.items() if value}


@dataclass(frozen=True)
class SecurityOptions(Options):
    """What every node takes that binds or connects."""

    secret_key_file: str = option(
        "",
        "this node's secret key, as `dafka keys new` makes it: with it nodes talk encrypted, "
        "and to owners of allowed keys only (docs/security.md). Or env:NAME, an environment "
        "variable that holds the key itself. Needs allowed_keys",
        kind="FILE",
    )
    allowed_keys: str = option(
        "",
        "a directory with the public keys, NAME.key, of the towers and nodes that are let in; it "
        "is looked at each second",
        kind="DIR",
    )

    insecure: bool = option(
        False,
        "bind to addresses that other machines reach where no keys are asked for: whoever reaches "
        "them reads and writes everything. The same as DAFKA_INSECURE=true in the environment",
    )

    def __post_init__(self) -> None:
        if self.secret_key_file and not self.allowed_keys:
            why = "must name the directory of keys that are let in, since secret_key_file is set"
            raise ConfigError("allowed_keys", self.allowed_keys, why)
        if self.allowed_keys and not self.secret_key_file:
            why = "needs this node's own key as well: set option secret_key_file"
            raise ConfigError("allowed_keys", self.allowed_keys, why)

    @property
    def keys(self) -> KeyFiles:
        """The two files together."""
        return KeyFiles(self.secret_key_file, self.allowed_keys)

    @property
    def may_be_open(self) -> bool:
        """Whether ports without keys may be other machines' to reach.

        Raises:
            ConfigError: the environment says neither.
        """
        said = os.environ.get(INSECURE_ENVIRONMENT) or "false"
        try:
            return parse_bool(said) or self.insecure
        except ValueError as error:
            name, what = INSECURE_ENVIRONMENT, "environment variable"
            raise ConfigError(name, said, str(error), what) from None
