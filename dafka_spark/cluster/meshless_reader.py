"""A reader that has no mesh: what stores say by Arrow Flight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from dafka_core import Reader
from dafka_core.errors import DafkaError
from dafka_core.records import Contacts, RecordBatch, TopicPartition


class MeshlessReader(Reader, ABC):
    """In place of a mesh's reader; does not join the mesh, so ``Reader.__init__`` is not run."""

    @abstractmethod
    def _refusal(self) -> DafkaError:
        """Why nothing can be read from a mesh."""

    def contacts(self) -> Contacts:
        """See ``Reader``: no node hears of this one."""
        return Contacts()

    def read(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> Iterator[RecordBatch]:
        """There is no mesh to read from."""
        raise self._refusal()

    def times(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> list[tuple[int, int]]:
        """There is no mesh to ask."""
        raise self._refusal()

    def close(self) -> None:
        """There is nothing to close."""
