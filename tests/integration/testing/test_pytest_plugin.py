"""The fixtures that users' tests get."""

import pytest

from dafka_core import EmbeddedCluster, Producer, Reader
from dafka_core.model.name_limits import check_topic
from dafka_core.model.records import TopicPartition
from dafka_core.testing import PATIENCE_S

seen: set[str] = set()


def test_the_fixture_is_a_cluster(dafka_cluster: EmbeddedCluster) -> None:
    with Producer("fixture", tower=dafka_cluster.tower) as producer:
        producer.publish(b"0")
    tp = TopicPartition("fixture", producer.address)
    with Reader(tower=dafka_cluster.tower) as reader:
        [batch] = reader.read(tp, 0, 1, timeout_s=PATIENCE_S)
    assert batch.values == [b"0"]


def test_the_fixture_is_the_same_for_the_whole_session(
    dafka_cluster: EmbeddedCluster, request: pytest.FixtureRequest
) -> None:
    assert request.getfixturevalue("dafka_cluster") is dafka_cluster
    assert len(dafka_cluster.stores) == 1


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_a_topic_of_its_own(dafka_topic: str, number: int) -> None:
    check_topic(dafka_topic)
    assert dafka_topic not in seen
    seen.add(dafka_topic)
