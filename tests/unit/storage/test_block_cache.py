"""The cache of blocks: least recently used blocks go first, and its size is bounded."""

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.storage import block as module
from dafka_core.storage.block import Block, BlockCache
from tests.unit.storage.test_block import pack

KEYS = [b"%d" % number for number in range(6)]


def block_of(size_bytes: int) -> Block:
    """Return a block of one record with about this size."""
    return Block.parse(pack([bytes(size_bytes)], 0))


BLOCKS = [block_of(size_bytes) for size_bytes in (1, 100, 200, 500, 1000, 2000)]
STEPS = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.sampled_from(BLOCKS)))


@given(STEPS, st.integers(0, 2500))
def test_it_has_what_was_used_last_as_far_as_there_is_room(
    steps: list[tuple[bytes, Block | None]], room_bytes: int
) -> None:
    """Each step puts a block under a key, or gets an existing one."""
    expected: OrderedDict[bytes, Block] = OrderedDict()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CACHE_BYTES", room_bytes)
        patch.setattr(module, "LEAST_BYTES", 0)
        cache = BlockCache()
        for key, block in steps:
            if block is None:
                assert cache.get(key) is expected.get(key)
            elif block.size_bytes <= room_bytes:
                cache.put(key, block)
                expected[key] = block
            else:
                # It drops nothing, neither others nor the key's block.
                cache.put(key, block)
                continue
            if key in expected:
                expected.move_to_end(key)
            while sum(each.size_bytes for each in expected.values()) > room_bytes:
                expected.popitem(last=False)
        assert {key: cache.get(key) for key in KEYS} == {key: expected.get(key) for key in KEYS}


def test_a_block_that_has_grown_takes_the_place_of_the_shorter_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES", 3000)
    monkeypatch.setattr(module, "LEAST_BYTES", 0)
    cache = BlockCache()
    for size_bytes in range(0, 2000, 10):
        cache.put(b"grows", block_of(size_bytes))
        cache.put(b"other", BLOCKS[1])
    # If the shorter ones still counted, there would be no room for both.
    found = cache.get(b"grows")
    assert found is not None
    assert found.values.to_list() == [bytes(1990)]
    assert cache.get(b"other") is BLOCKS[1]


def test_threads_may_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES", 2500)
    monkeypatch.setattr(module, "LEAST_BYTES", 0)
    cache = BlockCache()

    def use(number: int) -> int:
        found = 0
        for step in range(2_000):
            at = (step * 7 + number) % len(KEYS)
            block = cache.get(KEYS[at])
            found += block is BLOCKS[at]
            assert block is None or block is BLOCKS[at]
            cache.put(KEYS[at], BLOCKS[at])
        return found

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(use, range(4))) > 0
    held = [block.size_bytes for key in KEYS if (block := cache.get(key)) is not None]
    assert 0 < sum(held) <= 2500


def test_small_blocks_are_not_kept() -> None:
    cache = BlockCache()
    for size_bytes in (1, module.LEAST_BYTES - 500, module.LEAST_BYTES):
        cache.put(b"%d" % size_bytes, block_of(size_bytes))
    assert cache.get(b"1") is None
    assert cache.get(b"%d" % (module.LEAST_BYTES - 500)) is None
    assert cache.get(b"%d" % module.LEAST_BYTES) is not None
