"""Writing records by hand."""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec

from dafka_core.config.options import check_argument
from dafka_core.errors import ClosedError, DafkaError, InvalidRequestError
from dafka_core.model.name_limits import check_topic
from dafka_core.model.names import INTERNAL, unescape
from dafka_core.nodes.producer import Producer
from dafka_core.system.closing import Closing

MOST_PRODUCERS: Final = 8  # producers kept for further records; each is a node of the mesh

ACK_S: Final = 10.0


class Producers(Closing):
    """A producer for each recently written topic; thread-safe.

    So this process has one partition in a topic, however many records are written.

    Args:
        options: how to join the mesh.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._lock = threading.Lock()
        self._producers: OrderedDict[str, Producer] = OrderedDict()
        self._closed = False

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]],
    ) -> tuple[str, int]:
        """Write one record and wait until a store has it; return its partition and offset.

        Raises:
            DafkaError: it cannot be written, or no store has it in time.
        """
        with self._lock:
            producer = self._producer(topic)
            try:
                offset = producer.publish(value, key, headers)
                producer.flush(ACK_S)
            except DafkaError:
                # An unacknowledged record may still arrive; the next one gets a new producer.
                self._end(topic)
                raise
            return producer.address, offset

    def close(self) -> None:
        """Close all producers."""
        with self._lock:
            self._closed = True
            for topic in [*self._producers]:
                self._end(topic)

    def _producer(self, topic: str) -> Producer:
        if self._closed:
            raise ClosedError("console")
        found = self._producers.get(topic)
        if found is None:
            found = Producer(topic, **self._options, close_timeout_s=1.0)
            self._producers[topic] = found
            if len(self._producers) > MOST_PRODUCERS:
                self._end(next(iter(self._producers)))
        self._producers.move_to_end(topic)
        return found

    def _end(self, topic: str) -> None:
        with suppress(DafkaError):  # the user was told that the record is not acknowledged
            self._producers.pop(topic).close()


def written(body: bytes) -> tuple[str, bytes | None, bytes | None, list[tuple[str, bytes]]]:
    """Parse a record; raise InvalidRequestError, which names the member, if it is invalid."""
    try:
        found = _DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError("body", body[:100], str(error)) from None
    except UnicodeDecodeError:
        raise InvalidRequestError("body", body[:100], "must be UTF-8") from None
    topic = unescape(found.topic)
    check_argument("topic", topic, check_topic)
    if topic.startswith(INTERNAL):
        raise InvalidRequestError("topic", found.topic, "is internal to Dafka and read-only here")
    headers = [(name, value.encode()) for name, value in found.headers.items()]
    value = None if found.value is None else _octets(found.value, found.encoding)
    return topic, value, None if found.key is None else found.key.encode(), headers


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    value: str | None = None
    key: str | None = None
    headers: dict[str, str] = {}
    encoding: Literal["text", "base64", "hex"] = "text"


_DECODER: Final = msgspec.json.Decoder(_Written)


def _octets(text: str, encoding: str) -> bytes:
    try:
        if encoding == "base64":
            return base64.b64decode(text, validate=True)
        return bytes.fromhex(text) if encoding == "hex" else text.encode()
    except ValueError as error:
        raise InvalidRequestError("value", text[:100], f"is no {encoding}: {error}") from None
