"""The store's durable log."""

from dafka_core.storage.block import Chunk
from dafka_core.storage.log import Log, WrongOffsetError

__all__ = ["Chunk", "Log", "WrongOffsetError"]
