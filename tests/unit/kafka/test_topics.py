"""Names of topics that Kafka clients may make."""

from __future__ import annotations

import pytest

from dafka_kafka.topics import KAFKAS_OWN, wrong_name


@pytest.mark.parametrize(
    "name", ["t", "a.b_c-D9", "...", "x" * 249, "_schemas", "__consumer", "__Consumer_offsets"]
)
def test_kafkas_names_are_fine(name: str) -> None:
    assert wrong_name(name) == ""


@pytest.mark.parametrize(
    "name", ["", None, ".", "..", "a b", "ü", "a/b", "x" * 250, "a\n", "\udcff", "٣"]
)
def test_others_are_not(name: str | None) -> None:
    assert "name" in wrong_name(name)


def test_dafkas_own_are_not() -> None:
    assert "Dafka's own" in wrong_name("__dafka.queries")


def test_names_of_topics_of_kafkas_brokers_are_not() -> None:
    assert len(KAFKAS_OWN) == 5
    for name in KAFKAS_OWN:
        assert f"{name} is internal to Kafka's brokers" in wrong_name(name)
