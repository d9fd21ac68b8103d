"""Everything on disk survives a kill, and damage is found."""

import mmap
import random
import time
from pathlib import Path

import pytest

from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch
from dafka_core.storage import Log
from dafka_core.storage.rows import BLOCK_KEY
from tests.integration.storage import appender
from tests.integration.storage.damage import change, three_blocks
from tests.integration.storage.processes import TP, P, child, killed, told, values_of


def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    """Each child appends, commits, merges and trims, and is killed at some moment."""
    chance = random.Random(20)
    acknowledged, merged, committed = 0, 0, 0
    for seed in range(6):
        with child(tmp_path, seed) as process:
            heard = [told(process) for _ in range(chance.randint(1, 60))]
            assert heard[0].end >= acknowledged
            time.sleep(chance.random() * 0.005)  # anywhere in an append, a merge or a trim
            heard += killed(process)
        acknowledged = heard[-1].end
        merged += heard[-1].merged
        with Log(tmp_path) as store:
            assert store.end(TP) >= acknowledged
            for info in store.partitions():
                expected = [appender.value(n) for n in range(info.earliest, info.end)]
                assert values_of(store, info.tp) == expected
            states = [store.transaction_state(tp).transaction for tp in (TP, appender.OTHER)]
            versions = {each.version if each else 0 for each in states}
            (committed,) = versions  # in both partitions, or in none
    assert acknowledged > 0
    assert merged > 5
    assert committed > 5


def test_a_flipped_bit_on_disk_is_found(tmp_path: Path) -> None:
    values = three_blocks(tmp_path)
    with (tmp_path / "data.mdb").open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        position = data.find(values[150]) + 500
        data[position] ^= 4
    with Log(tmp_path) as store:
        damage = f"topic 't', partition {P}: the block at offset 100 cannot be read: its checksum"
        for read in (store.read, store.times):
            with pytest.raises(StoreError, match=damage) as caught:
                read(TP, 50, 300)
            assert caught.value.directory == str(tmp_path)
        (first,) = store.read(TP, 0, 100)
        (last,) = store.read(TP, 250, 300)
        assert first.values.to_list() + last.values.to_list() == values[:100] + values[250:]
        store.append([RecordBatch.of(TP, 300, [b"next"])])
        assert store.trim(TP, 200) == 200
        assert values_of(store) == [*values[200:], b"next"]


@pytest.mark.parametrize(("missing", "start"), [(0, 0), (100, 150), (200, 299)])
def test_a_missing_block_is_found(tmp_path: Path, missing: int, start: int) -> None:
    three_blocks(tmp_path)
    change(tmp_path, b"blocks", bytes(8) + missing.to_bytes(8, "big"), None)
    with (
        Log(tmp_path) as store,
        pytest.raises(StoreError, match=f"at offset {start} .*the block is missing"),
    ):
        store.read(TP, start, 300)


OWN = BLOCK_KEY.pack(0, 100)


@pytest.mark.parametrize(
    ("other", "starts"),
    [
        *((BLOCK_KEY.pack(0, first), (0, 95, 120, 180)) for first in (90, 101, 110)),
        (OWN[:-3], (0,)),
    ],
)
def test_a_block_under_another_key_is_refused(
    tmp_path: Path, other: bytes, starts: tuple[int, ...]
) -> None:
    """Its checksum covers its content, not its place."""
    values = three_blocks(tmp_path)
    with Log(tmp_path) as log, log.snapshot() as tables:
        blocks = {bytes(key): bytes(block) for key, block in tables.entries(2)}
    change(tmp_path, b"blocks", OWN, None)
    change(tmp_path, b"blocks", other, blocks[OWN])
    with Log(tmp_path) as log, log.snapshot() as snapshot:
        for start in starts:
            for read in (log.read, snapshot.read):
                with pytest.raises(StoreError, match="cannot be read"):
                    list(read(TP, start, 300))
        assert [*log.read(TP, 200, 300)[0].values] == values[200:]
