"""A log of three blocks, and changes of its file without its knowledge."""

import mmap
from pathlib import Path

import lmdb

from dafka_core.model.records import RecordBatch
from dafka_core.model.values import Values
from dafka_core.storage import Log
from dafka_core.storage.block import Block, compressed, pack
from tests.integration.storage import appender
from tests.integration.storage.processes import TP


def three_blocks(directory: Path) -> list[bytes]:
    values = [appender.value(number).ljust(1000, b".") for number in range(300)]
    with Log(directory) as store:
        for first in range(0, 300, 100):
            store.append([RecordBatch.of(TP, first, values[first : first + 100])])
    return values


def trees(data: Path) -> list[int]:
    """Return the positions of pages of trees, and of free pages that were such."""
    content = data.read_bytes()
    return [
        at
        for at in range(2 * mmap.PAGESIZE, len(content), mmap.PAGESIZE)
        if content[at : at + 8] == (at // mmap.PAGESIZE).to_bytes(8, "little")
        and content[at + 10] in (1, 2)
    ]


def erase(data: Path, at: int, by: bytes = bytes(mmap.PAGESIZE)) -> bytes:
    """Overwrite a page with zeros or other content; return the previous content."""
    with data.open("r+b") as file:
        file.seek(at)
        before = file.read(mmap.PAGESIZE)
        file.seek(at)
        file.write(by)
    return before


def spoil(data: Path, content: bytes) -> None:
    """Flip a bit of each byte of some content."""
    before = data.read_bytes()
    assert content in before
    data.write_bytes(before.replace(content, bytes(each ^ 0x20 for each in content)))


def entries(directory: Path, table: bytes, prefix: bytes = b"") -> dict[bytes, bytes]:
    """Return a table's rows whose keys begin with a prefix."""
    with lmdb.Environment(str(directory), max_dbs=3, readonly=True) as env, env.begin() as txn:
        rows = txn.cursor(env.open_db(table, txn, create=False))
        return {key: value for key, value in rows if key.startswith(prefix)}


def change(directory: Path, table: bytes, key: bytes, value: bytes | None) -> None:
    """Change a row without the log's knowledge."""
    with lmdb.Environment(str(directory), max_dbs=3) as env:
        opened = env.open_db(table, create=False)
        with env.begin(write=True, db=opened) as txn:
            if value is None:
                assert txn.delete(key)
            else:
                txn.put(key, value)


def tamper(directory: Path, old: bytes, new: bytes) -> None:
    """Replace a value in every block with it, and recompute the block's checksum."""
    found = 0
    with lmdb.Environment(str(directory), max_dbs=3, map_size=1 << 30) as env:
        blocks = env.open_db(b"blocks", create=False)
        with env.begin(write=True, db=blocks) as txn:
            for key, packed in list(txn.cursor()):
                block = Block.parse(packed)
                values = block.values.to_list()
                if old in values:
                    values[values.index(old)] = new
                    made = pack(Values.of(values), block.times, block.newest_us)
                    txn.put(key, (block.codec and compressed(made, block.codec)) or made)
                    found += 1
    assert found
