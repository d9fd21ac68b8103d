"""Options of nodes that are given to Spark with ``dafka.`` before their names."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from dafka_core.errors import ConfigError
from dafka_core.node_options import ProducerOptions, ReaderOptions
from dafka_spark.cluster import connections
from dafka_spark.node_settings import settings_of
from dafka_spark.options import SinkOptions, SourceOptions
from dafka_spark.spark_options import MeshAddress


def read(**given: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", "tower": "host", **given})


@pytest.mark.parametrize(
    "name", ["dafka.peer_expiry_ms", "DAFKA.PEER_EXPIRY_MS", "dafka.peerExpiryMs"]
)
def test_the_reader_of_a_query_has_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = pickle.loads(pickle.dumps(read(**{name: "9000", "dafka.wire": "rfc46"})))
    address = options.mesh_address
    assert address.node == (("peer_expiry_ms", "9000"), ("wire", "rfc46"))
    assert address != read().mesh_address  # it is no other query's reader
    opened: dict[str, Any] = {}

    def reader(**given: Any) -> None:
        opened.update(given)

    monkeypatch.setattr(connections, "Reader", reader)
    connections._join(MeshAddress("host", node=address.node))
    assert ReaderOptions.build(opened).peer_expiry_ms == 9_000


def test_a_sink_has_those_of_producers_too() -> None:
    given = {"dafka.max_unacked_records": "7", "dafka.max_queued_bytes": "8", "dafka.wire": "rfc46"}
    options = SinkOptions.of(given)
    assert options.mesh_address.node == (("max_queued_bytes", "8"), ("wire", "rfc46"))
    producer = settings_of(ProducerOptions, options.node)
    assert producer == {"max_unacked_records": "7", "wire": "rfc46"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"dafka.peer_expire_ms": "1"}, "did you mean 'dafka.peer_expiry_ms'?"),
        ({"dafka.peer_expiry_ms": "soon"}, "option 'dafka.peer_expiry_ms' = 'soon': must be a who"),
        ({"dafka.peerExpiryMs": "1"}, "option 'dafka.peer_expiry_ms' = '1': must be at least 100"),
        ({"dafka.tower": "x"}, "option 'dafka.tower' = 'x': is option 'tower' here"),
        ({"dafka.max_unacked_records": "7"}, "there is no such option"),
        (
            {"dafka.peerExpiryMs": "900", "dafka.peer_expiry_ms": "900"},
            "option 'dafka.peer_expiry_ms' = '900': is option 'dafka.peerExpiryMs' in another spel",
        ),
        ({"dafka.secret_key": "Z"}, "'dafka.secret_key' = '(not shown)': there is no such option"),
        ({"dafka.": "7"}, "there is no such option"),
        ({"dafka.wire": "rfc46", "stores": "grpc://h:1"}, "nobody joins a mesh with option stores"),
    ],
)  # fmt: skip
def test_what_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**given)
    assert says in str(caught.value)
