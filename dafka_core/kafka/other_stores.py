"""Has the other stores do what this gateway's store does: give up records, keep rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.refusal import RefusedError
from dafka_core.nodes.store_handle import StoreHandle

ANSWER_S: Final = 10.0
"""How long each may take."""


def check_all_there(store: StoreHandle) -> None:
    """Sees whether all stores that are known can be asked.

    Raises:
        RefusedError: one is away, or serves no Flight.
    """
    lacking = sorted(set(store.known_stores) - set(store.endpoints))
    if lacking:
        why = (
            f"stores {', '.join(lacking)} are away, or serve no Flight, and would not hear of it: "
            "start them, or if they are gone for ever, say so by 'dafka store forget'"
        )
        raise RefusedError(KafkaError.NOT_ENOUGH_REPLICAS, why)


def tell_others(store: StoreHandle, tell: Callable[[StoreClient], object]) -> None:
    """Tells each other store that is there.  Waits, so it is not for the loop.

    Raises:
        RefusedError: one does not do it; the others may have.
    """
    for address, locations in sorted(store.endpoints.items()):
        try:
            with StoreClient(StoreLocation(address, locations), store.options.keys) as client:
                tell(client)
        except DafkaError as error:
            why = f"store {address} has not done it, and others may have: {error}"
            raise RefusedError(KafkaError.REQUEST_TIMED_OUT, why) from None
