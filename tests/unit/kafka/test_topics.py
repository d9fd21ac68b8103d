"""Names of topics that Kafka clients may make."""

from __future__ import annotations

from dafka_kafka.topics import KAFKAS_OWN, wrong_name


def test_kafkas_names_are_fine_and_others_are_not() -> None:
    fine = ("t", "a.b_c-D9", "...", "x" * 249, "_schemas", "__consumer", "__Consumer_offsets")
    assert {*map(wrong_name, fine)} == {""}
    for name in ("", None, ".", "..", "a b", "ü", "a/b", "x" * 250, "a\n", "\udcff", "٣"):
        assert "name" in wrong_name(name)
    assert "Dafka's own" in wrong_name("__dafka.queries")
    assert len(KAFKAS_OWN) == 5
    for name in KAFKAS_OWN:
        assert f"{name} is internal to Kafka's brokers" in wrong_name(name)
