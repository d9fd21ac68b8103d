"""Backups and checks of a store that runs, over Flight."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.errors import StoreUnreachableError
from dafka_core.flight import limits
from dafka_core.flight.backup_requests import BackupRequest, CheckRequest, entries_of
from dafka_core.flight.store_client import StoreClient
from dafka_core.storage.backup import BLOCKS, Entry, Known, fact
from dafka_core.storage.open_environment import FORMAT
from dafka_core.system.distribution import this_version
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import TP, Served, values
from tests.integration.storage.damage import erase, trees
from tests.integration.storage.test_log_check import COUNT, NAMES, many


def copied(client: StoreClient, known: list[Known] | None = None) -> Iterator[Entry]:
    ticket = BackupRequest(known=tuple((*each,) for each in known or ())).packed()
    return client.get(ticket, entries_of, PATIENCE_S)


def test_a_running_store_gives_all_of_one_moment(filled: Served, client: StoreClient) -> None:
    found = copied(client)
    assert fact(next(found)) == {"format": FORMAT, "dafka": this_version(), "whole": []}
    filled.extend(30_000)
    *entries, last = found
    assert fact(last) == {"entries": len(entries)}
    taken = b"".join(bytes(each.value) for each in entries if each.table == BLOCKS)
    assert values(19_990, 20_000)[-1] in taken
    assert values(29_999, 30_000)[0] not in taken
    # The moments are given back, too: the log closes.


@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_a_client_that_takes_nothing_keeps_no_moment(
    large: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Also where its connection is not broken, as others use the same socket."""
    monkeypatch.setattr(limits, "BACKUP_IDLE_S", 0.5)
    with Served(large) as served, StoreClient(getattr(served, way)) as client:
        assert served.log._env._uses == 0
        found = copied(client)
        next(found)
        assert served.log._env._uses == 1
        wait_until(lambda: served.log._env._uses == 0, "the moment is given back")
        assert served.service.context.backups.free == limits.MAX_BACKUPS
        with pytest.raises(StoreUnreachableError):
            list(found)


def test_a_backup_ends_with_the_store(large: Path) -> None:
    with Served(large) as served, StoreClient(served.tcp) as client:
        found = copied(client)
        next(found)
        closing = threading.Thread(target=served.close)
        closing.start()
        with pytest.raises(StoreUnreachableError):
            list(found)
        closing.join(PATIENCE_S)
        assert not closing.is_alive()


def test_a_running_store_checks_what_it_has(filled: Served, client: StoreClient) -> None:
    (checked,) = client.ask(PATIENCE_S, CheckRequest((TP,)))
    assert (checked.partitions, checked.records, checked.found) == (1, 20_005, ())
    (rest,) = client.ask(PATIENCE_S, CheckRequest())
    assert (rest.records, rest.found) == (0, ())
    path = filled.log.directory / "data.mdb"
    content = path.read_bytes()
    at = content.index(values(9_000, 9_001)[0])
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"!")
    (checked,) = client.ask(PATIENCE_S, CheckRequest((TP,)))
    assert [each.kind for each in checked.found] == ["block"]


def test_damaged_pages_of_a_tree_are_named_by_a_running_store(tmp_path: Path) -> None:
    """They used to be an error of LMDB's, without a sentence, and to end the check."""
    many(tmp_path)
    data, counts = tmp_path / "data.mdb", set()
    with Served(tmp_path) as served, StoreClient(served.tcp) as client:
        for at in trees(data):
            page = erase(data, at)
            try:
                (checked,) = client.ask(PATIENCE_S, CheckRequest(tuple(NAMES)))
                named = {each.partition for each in checked.found}
                counts.add(len(named))
                assert len(NAMES) - len(named) <= checked.records // COUNT
                if {each.kind for each in checked.found} == {"block"} and len(named) == len(NAMES):
                    with pytest.raises(StoreUnreachableError, match=f"store at {tmp_path}: mdb_"):
                        list(copied(client))
            finally:
                erase(data, at, page)
    assert {0, len(NAMES)} < counts
