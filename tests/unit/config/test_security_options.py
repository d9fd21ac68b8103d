"""The options of keys, and their owners' roles."""

from __future__ import annotations

import pytest

from dafka_core.config.node_options import ReaderOptions, TowerOptions
from dafka_core.errors import ConfigError


def test_one_option_without_the_other_is_refused() -> None:
    for table in (ReaderOptions, TowerOptions):
        with pytest.raises(ConfigError, match="must name the directory of allowed keys"):
            table.build({"secret_key_file": "f"})
        with pytest.raises(ConfigError, match="set option secret_key_file"):
            table.build({"allowed_keys": "d"})
