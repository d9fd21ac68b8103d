"""Which partitions a query reads."""

from __future__ import annotations

import json

from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_spark.option_types import TopicSelection
from dafka_spark.options import SourceOptions

ADDRESS = "EB0A5E4C1F3B4D7C8C1B0F8E2D3C4B5A"


def selection(**given: str) -> TopicSelection:
    return SourceOptions.of(given).selection


def test_whole_topics_are_compared() -> None:
    chosen = selection(subscribe="hello,t")
    assert chosen.asked == ["hello", "t"]
    assert chosen.has(TopicPartition("hello", ADDRESS))
    assert not chosen.has(TopicPartition("hello2", ADDRESS))
    assert not selection(subscribe="t").has(TopicPartition("t2", ADDRESS))


def test_a_pattern_matches_whole_topics() -> None:
    chosen = selection(subscribePattern="hel+o|t.")
    assert chosen.asked is None
    assert chosen.has(TopicPartition("hello", ADDRESS))
    assert chosen.has(TopicPartition("t2", ADDRESS))
    assert not chosen.has(TopicPartition("hello2", ADDRESS))
    assert not chosen.has(TopicPartition("a hello", ADDRESS))
    assert not chosen.has(TopicPartition("hello\n", ADDRESS))


def test_names_are_those_that_are_shown() -> None:
    odd = TopicPartition("bad\udcff\n", ADDRESS)
    assert selection(subscribePattern=r"bad\\xff.*").has(odd)
    assert not selection(subscribePattern="bad").has(odd)
    chosen = selection(subscribe=r" bad\xff\x0a , a\x2cb\x20")
    assert chosen.asked == ["a,b ", "bad\udcff\n"]
    assert chosen.has(odd)
    given = json.dumps({r"bad\xff\x0a": [r"\x1b"]})
    assert selection(assign=given).has(TopicPartition("bad\udcff\n", "\x1b"))


def test_assigned_partitions() -> None:
    chosen = selection(assign=f'{{"t": ["{ADDRESS}", "C"], "a": ["B"]}}')
    assert chosen.asked == ["a", "t"]
    assert chosen.has(TopicPartition("t", ADDRESS))
    assert not chosen.has(TopicPartition("t", "B"))
    assert not chosen.has(TopicPartition("u", ADDRESS))


def test_of_what_stores_have_only_the_partitions_that_are_read() -> None:
    infos = [PartitionInfo(topic, name, 0, 9) for topic in ("t", "u") for name in ("B", "A")]
    assert selection(subscribe="t").of(infos) == infos[:2]
    assert selection(subscribePattern="[tu]").of(infos) == infos
    assert selection(assign='{"u": ["A"], "v": ["A"]}').of(infos) == infos[3:]


def test_no_pattern_matches_the_topics_of_our_own_programs() -> None:
    own = TopicPartition("__dafka.queries", "A")
    assert not SourceOptions.of({"subscribePattern": ".*"}).selection.has(own)
    assert SourceOptions.of({"subscribe": own.topic}).selection.has(own)
    assert SourceOptions.of({"metadata": "topics"}).selection.has(own)
