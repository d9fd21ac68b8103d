"""Stores that option ``stores`` names: where no mesh is, or none can be reached from here."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from dafka_core.config.security_options import KeyFiles
from dafka_core.errors import DafkaError, NoStoreError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import KnownStore, PartitionInfo, merge_heads
from dafka_spark.cluster import timing
from dafka_spark.cluster.known_stores import MAX_ASKED, MeshlessReader
from dafka_spark.cluster.timing import Deadline

NO_MESH: Final = "with option stores there is no mesh to read from"

_ANY_TOPIC: Final = "-"
"""Asked for only to hear of the stores."""


class NamedStoresReader(MeshlessReader):
    """In place of a mesh's reader: what some stores say by Arrow Flight.

    Args:
        uris: where they are.
        keys: by which they let this process in.
    """

    def __init__(self, uris: Sequence[str], keys: KeyFiles) -> None:
        self._keys = keys
        self._uris = uris
        self._found: dict[str, StoreLocation] = {}  # by URI
        self._failure = ""
        self._looked_at = -math.inf

    def stores(self) -> list[str]:
        """See ``Reader``: one that has never answered goes by its URI."""
        return sorted(self._locations())

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """See ``Reader``: where the stores are, first as the option says."""
        self._look()
        return {name: each.locations for name, each in self._locations().items()}

    def hear_stores(self, *, timeout_s: float) -> None:
        """See ``Reader``."""
        self.partitions([_ANY_TOPIC], timeout_s=timeout_s)

    def partitions(
        self, topics: Collection[str] | None = None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        """See ``Reader``: what the stores that answer have together.

        Raises:
            NoStoreError: none has answered within ``timeout_s`` seconds.
        """
        for _ in (deadline := Deadline(timeout_s)).attempts():
            self._look(again=True)
            infos: list[PartitionInfo] = []
            answered = False
            for location in self._found.values():
                with suppress(DafkaError), StoreClient(location, self._keys) as client:
                    infos += client.heads(topics, timeout_s=timing.ANSWER_S)
                    answered = True
            if answered:
                return [*merge_heads(infos).values()]
        error = NoStoreError(self._uris, deadline.timeout_s)
        error.add_note(self._failure)
        raise error

    def missing_stores(self, *, timeout_s: float) -> list[KnownStore]:
        """See ``Reader``: those named that do not answer, and those that others know."""
        self._look()
        found = self._locations()
        missing = [KnownStore(uri, uri) for uri in self._uris if uri not in self._found]
        for location in self._found.values():
            with suppress(DafkaError), StoreClient(location, self._keys) as client:
                told = client.stores(timeout_s=timeout_s)
                others = {each.store: each for each in told if each.store not in found}
                missing += [
                    KnownStore(name, "".join(each.locations[-1:])) for name, each in others.items()
                ]
        return sorted({each.store: each for each in missing}.values())

    def _refusal(self) -> DafkaError:
        return StoreUnreachableError(", ".join(self._uris), NO_MESH)

    def _locations(self) -> dict[str, StoreLocation]:
        found = (self._found.get(uri, StoreLocation(uri, (uri,))) for uri in self._uris)
        return {each.store: each for each in found}

    def _look(self, *, again: bool = False) -> None:
        """Asks the stores who they are, if that was long ago, or one of them is not known."""
        is_complete = len(self._found) == len(self._uris)
        age_s = timing.DESCRIPTION_S if is_complete else timing.RETRY_S
        if time.monotonic() < self._looked_at + age_s and not (again and not self._found):
            return
        self._looked_at = time.monotonic()
        with ThreadPoolExecutor(min(len(self._uris), MAX_ASKED)) as pool:
            for uri, location in zip(self._uris, pool.map(self._describe, self._uris), strict=True):
                if location is not None:
                    self._found[uri] = location

    def _describe(self, uri: str) -> StoreLocation | None:
        try:
            with StoreClient(StoreLocation("", (uri,)), self._keys) as client:
                return client.describe(timeout_s=timing.ANSWER_S).found_at([uri])
        except DafkaError as error:
            self._failure = f"{uri}: {error}"
            return None
