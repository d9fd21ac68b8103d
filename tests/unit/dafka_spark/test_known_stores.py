"""A reader that has no mesh: who asks it for what only a mesh has is told why."""

from __future__ import annotations

import pytest

from dafka_core.config.node_options import NO_KEYS
from dafka_core.errors import StoreUnreachableError
from dafka_core.model.records import TopicPartition
from dafka_spark.cluster.cluster_reader import NO_MESH, NamedStoresReader

TP = TopicPartition("numbers", "00000000000000000000000000000001")


def test_it_refuses_what_only_a_mesh_has() -> None:
    reader = NamedStoresReader(["grpc://127.0.0.1:1"], NO_KEYS)
    with pytest.raises(StoreUnreachableError, match=NO_MESH):
        reader.read(TP, 0, 1, timeout_s=1)
    with pytest.raises(StoreUnreachableError, match=NO_MESH):
        reader.times(TP, 0, 1, timeout_s=1)
    reader.close()
