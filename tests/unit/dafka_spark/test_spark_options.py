"""What the options of reading and writing have in common."""

from __future__ import annotations

import pytest

from dafka_core.errors import ConfigError
from dafka_core.security_options import NO_KEYS, KeyFiles
from dafka_spark.options import SinkOptions, SourceOptions
from dafka_spark.spark_options import sides, user_options


def test_there_are_two_sides_which_know_each_other() -> None:
    assert sides() == [SourceOptions, SinkOptions]


def test_a_tables_options_are_told_from_its_properties() -> None:
    given = {"owner": "me", "ab": "x", "option.ab": "x", "provider": "dafka", "pp": "q"}
    assert user_options(given) == {"ab": "x"}
    assert user_options({"ab": "x"}) == {"ab": "x"}


def test_keys_are_options_or_of_the_drivers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"subscribe": "t"}
    assert SourceOptions.of(given).keys == NO_KEYS
    monkeypatch.setenv("DAFKA_SECRET_KEY_FILE", "/k/own")
    monkeypatch.setenv("DAFKA_ALLOWED_KEYS", "/k")
    found = SourceOptions.of(given | {"stores": "grpc://127.0.0.1:1"})
    assert found.keys == found.mesh_address.keys == KeyFiles("/k/own", "/k")
    own = given | {"dafka.secretKeyFile": "/o/own", "dafka.allowed_keys": "/o"}
    assert SourceOptions.of(own).keys == KeyFiles("/o/own", "/o")
    with pytest.raises(ConfigError, match="nobody joins a mesh with option stores"):
        SourceOptions.of(own | {"stores": "grpc://127.0.0.1:1", "dafka.peer_expiry_ms": "1000"})
