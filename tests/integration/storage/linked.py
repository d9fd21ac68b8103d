"""Logs with links, created without a store's thread."""

from pathlib import Path

import pytest

from dafka_core.model.records import TopicPartition
from dafka_core.storage import Log, linker
from dafka_core.storage.log_check import Checked, PartitionLink, check, links_of
from tests.integration.storage.staged import TP


def link(log: Log) -> None:
    """Create links of all records, without waiting for more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linker, "TAIL_S", 0)
        log.linker._scan_due_s = float("-inf")
        while log.linker.step():
            pass


def checked(log: Log) -> Checked:
    """Return the damage that a check finds."""
    done = Checked()
    for each in check(log.snapshot):
        done = done.plus(each)
    return done


def reopened(directory: Path) -> Checked:
    """Open a log, and return the damage that a check finds."""
    with Log(directory) as log:
        return checked(log)


def links(log: Log, tp: TopicPartition = TP, *, newest: bool = False) -> list[PartitionLink]:
    """Return a partition's links."""
    return links_of(log.snapshot, tp, newest=newest)
