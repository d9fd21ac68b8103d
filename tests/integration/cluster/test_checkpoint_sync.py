"""After a power cut at the driver the checkpoint repeats the batch that the sink has committed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dafka_core import EmbeddedCluster
from dafka_core.flight.store_client import StoreClient
from dafka_core.queries.checkpoint import sync_checkpoint
from tests.integration.cluster.test_audit import Query
from tests.synced_disk import SyncedDisk
from tests.unit.queries.checkpoints import ENDS, checkpoint, offsets, write


@pytest.mark.parametrize("scheme", ["", "file:"])
def test_the_checkpoint_is_on_disk_before_the_sink_commits(
    monkeypatch: pytest.MonkeyPatch,
    shared: EmbeddedCluster,
    topic: str,
    tmp_path: Path,
    scheme: str,
) -> None:
    directory = tmp_path / "new" / "c"
    disk = SyncedDisk(tmp_path, monkeypatch.setattr)
    lost: list[str] = []
    commit = StoreClient.commit

    def checked(client: StoreClient, staged: Sequence[Any], **named: Any) -> None:
        lost.extend(str(Path(each).relative_to(tmp_path)) for each in disk.lost())
        commit(client, staged, **named)

    monkeypatch.setattr(StoreClient, "commit", checked)
    query = Query(monkeypatch, shared, topic)
    directory.parent.mkdir()
    checkpoint(directory, ENDS[:1], committed=0)
    assert "new/c/offsets/0" in {str(Path(each).relative_to(tmp_path)) for each in disk.lost()}
    query.run(0, 0, 10, checkpoint=f"{scheme}{directory}")
    assert lost == []
    write(directory / "state" / "0" / "0" / "1.delta", "behind batch 0")
    write(directory / "commits" / "0", "v1\n{}")
    write(directory / "offsets" / "1", offsets(ENDS[1], 1))
    query.run(1, 10, 20, checkpoint=f"{scheme}{directory}")
    assert lost == []


def test_a_checkpoint_elsewhere_is_left_alone(tmp_path: Path) -> None:
    for location in ("", "hdfs://host/c", "s3a://bucket/c", str(tmp_path / "missing")):
        sync_checkpoint(location, 0)
    assert [*tmp_path.iterdir()] == []
