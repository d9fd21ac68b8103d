"""Messages about absent stores."""

from __future__ import annotations

import pytest

from dafka_core.config.missing_stores import (
    EVERY_STORE,
    check_min_stores,
    described,
    parse_min_stores,
    warning,
)
from dafka_core.errors import ConfigError
from dafka_core.model.records import KnownStore

AWAY = KnownStore("A" * 32, "tcp://10.0.0.7:40101", 1_700_000_000_000_000)
ONLY_NAME = KnownStore("B\n")


def test_a_store_is_described_by_its_endpoint_and_last_sign_of_life() -> None:
    heard = "last seen 2023-11-14T22:13:20Z"
    assert described(AWAY) == f"store {'A' * 32} (tcp://10.0.0.7:40101, {heard})"
    assert described(ONLY_NAME) == "store B\\x0a (never seen)"
    never = KnownStore("S", "", 2**63 - 1)
    assert described(never) == "store S (last seen 9223372036854775 ms after 1970)"
    assert "records that only it has are missing from this result" in warning(AWAY)
    assert f"'dafka store forget {'A' * 32}'" in warning(AWAY)


@pytest.mark.parametrize(("given", "meant"), [("all", EVERY_STORE), (" ALL ", EVERY_STORE), (3, 3)])
def test_valid_numbers_of_stores(given: object, meant: int) -> None:
    assert parse_min_stores(given) == meant


@pytest.mark.parametrize("given", ["0", "-1", "some", "", 1.5])
def test_invalid_numbers_of_stores(given: object) -> None:
    with pytest.raises(ValueError, match="or all"):
        parse_min_stores(given)


@pytest.mark.parametrize(
    ("least", "there", "missing"),
    [(None, 0, [AWAY]), (EVERY_STORE, 1, []), (1, 1, [AWAY]), (2, 2, [])],
)
def test_enough_stores(least: int | None, there: int, missing: list[KnownStore]) -> None:
    check_min_stores("minStores", least, there, missing)


@pytest.mark.parametrize(
    ("least", "there", "missing", "sentence"),
    [
        (EVERY_STORE, 1, [AWAY], "'minStores' = 'all': 1 store has answered; away: store AAAA"),
        (3, 2, [], "'minStores' = 3: 2 stores have answered; away: no other store is known"),
        (20, 2, [AWAY] * 13, " and 3 more"),
    ],
)
def test_too_few_stores(least: int, there: int, missing: list[KnownStore], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_min_stores("minStores", least, there, missing)
    assert sentence in str(caught.value)
