"""The codecs of blocks."""

from __future__ import annotations

import os

import pytest

from dafka_core.storage.block_codec import MAX_BODY_BYTES, NUMBERS, compress, decompress


@pytest.mark.parametrize("number", NUMBERS.values())
@pytest.mark.parametrize("body", [b"x", b"." * 100_000, os.urandom(100_000)])
def test_what_is_compressed_comes_back(number: int, body: bytes) -> None:
    made = compress(number, memoryview(body))
    assert len(made) < len(body) / 100 or len(body) < 2 or body[0] != body[1] or body[1] != body[2]
    opened = decompress(number, made, len(body))
    assert opened == body
    assert (opened.format, opened.itemsize) == ("B", 1)


@pytest.mark.parametrize("number", NUMBERS.values())
def test_what_is_not_compressed_is_refused(number: int) -> None:
    for wrong in (b"", b"nothing of the kind", bytes(compress(number, b"." * 1000))[:-2]):
        with pytest.raises(ValueError, match="cannot be decompressed"):
            decompress(number, wrong, 1000)
    with pytest.raises(ValueError, match="cannot be decompressed"):
        decompress(number, compress(number, b"." * 1000), 999)
    for size_bytes in (0, MAX_BODY_BYTES + 1, 2**63):
        with pytest.raises(ValueError, match=f"cannot open to {size_bytes} bytes"):
            decompress(number, b"x", size_bytes)


def test_another_codec_is_named() -> None:
    with pytest.raises(ValueError, match="by codec 9, which this program does not know"):
        decompress(9, b"x", 1)
