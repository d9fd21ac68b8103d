"""The codecs of blocks, by the number that a block's header has.

Arrow brings them, and is loaded when one is needed: a store that compresses nothing, and serves no
Flight, starts without it.
"""

from __future__ import annotations

from typing import Final

from dafka_core.values import Bytes

PLAIN: Final = 0
NUMBERS: Final = {"zstd": 1, "lz4": 2}
_ARROW: Final = {1: "zstd", 2: "lz4_raw"}

MAX_BODY_BYTES: Final = (1 << 30) + (1 << 20)
"""What a block opens to at most: the largest record has one of its own."""


def compress(number: int, body: Bytes) -> memoryview:
    """The octets compressed."""
    import pyarrow as pa  # noqa: PLC0415

    made = pa.Codec(_ARROW[number]).compress(pa.py_buffer(body))
    return memoryview(made).cast("B")[: made.size]  # there is more memory behind it


def decompress(number: int, body: Bytes, size_bytes: int) -> memoryview:
    """The ``size_bytes`` octets that were compressed.

    Raises:
        ValueError: they were not, or not by this codec, or there is no such codec.
    """
    if number not in _ARROW:
        raise ValueError(f"it is compressed by codec {number}, which this program does not know")
    if not 0 < size_bytes <= MAX_BODY_BYTES:
        raise ValueError(f"it cannot open to {size_bytes} bytes")
    import pyarrow as pa  # noqa: PLC0415

    try:
        opened = pa.Codec(_ARROW[number]).decompress(pa.py_buffer(body), size_bytes)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it cannot be decompressed ({error})") from error
    return memoryview(opened).cast("B")[:size_bytes]
