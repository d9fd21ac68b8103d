"""The lag of groups, from their stored state and the stores' ends."""

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dafka_core.errors import DataLossError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TopicPartition
from dafka_core.testing import PATIENCE_S, StoreDouble
from dafka_kafka.groups.group_lag import EMPTY, STABLE, GroupLag, group_lags
from dafka_kafka.groups.offsets import OFFSETS_TOPIC, Committed, GroupRecord
from tests.integration.kafka.groups.kept import MEMBER, keep


def lags(*stores: StoreDouble) -> list[GroupLag]:
    with ExitStack() as stack:
        clients = [stack.enter_context(StoreClient(store.location)) for store in stores]
        return group_lags(clients, timeout_s=PATIENCE_S)


def test_what_groups_have_not_read_is_counted(tmp_path: Path) -> None:
    with StoreDouble(tmp_path / "one", "1" * 32) as store:
        assert lags(store) == []
        keep(store)
        group, idle = lags(store)
        assert (group.group, group.state, group.members) == ("g", STABLE, 1)
        assert group.records_behind == 6
        assert group.bytes_behind is not None
        assert 600 <= group.bytes_behind < 800
        assert group.seconds_behind is not None
        assert 0 < group.seconds_behind < PATIENCE_S
        assert [
            (each.number, each.lag and each.lag.position, each.member) for each in group.partitions
        ] == [(0, 4, MEMBER), (1, 10, None), (2, None, MEMBER), (7, None, None)]
        assert (idle.group, idle.state, idle.records_behind) == ("idle", EMPTY, 0)


def test_of_a_negative_offset_the_lag_is_unknown(tmp_path: Path) -> None:
    with StoreDouble(tmp_path / "one", "1" * 32) as store:
        keep(store)
        low = Committed("t", 0, -2, time_ms=7), Committed("t", 1, -1, time_ms=7)
        low_record = GroupRecord("g", 9, low)
        store.append(TopicPartition(OFFSETS_TOPIC, "B" * 32), [low_record.packed()])
        group, _ = lags(store)
        found = [(each.number, each.lag) for each in group.partitions]
        assert found == [(0, None), (1, None), (2, None), (7, None)]


def test_what_several_gateways_have_kept_is_one(tmp_path: Path) -> None:
    with (
        StoreDouble(tmp_path / "one", "1" * 32) as one,
        StoreDouble(tmp_path / "two", "2" * 32) as two,
    ):
        keep(one)
        newer = GroupRecord("g", 9, (Committed("t", 0, 7),))
        two.append(TopicPartition(OFFSETS_TOPIC, "B" * 32), [newer.packed()])
        assert [each.records_behind for each in lags(one, two)] == [3, 0]


def test_a_partition_whose_beginning_goes_meanwhile_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []
    read = StoreClient.read

    def failing(
        self: StoreClient, tp: TopicPartition, *range_: Any, **asked: Any
    ) -> Generator[Any]:
        tries.append(tp)
        if tries.count(tp) < 3:
            raise DataLossError(*tp, 0, 1, "it is gone")
        return read(self, tp, *range_, **asked)

    with StoreDouble(tmp_path / "one", "1" * 32) as store:
        keep(store)
        monkeypatch.setattr(StoreClient, "read", failing)
        assert [each.group for each in lags(store)] == ["g", "idle"]
