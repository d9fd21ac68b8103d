"""A small extension of a store, as an example: it copies what is written to a topic."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dafka_core.config.options import Options, option
from dafka_core.errors import DafkaError
from dafka_core.model.records import TopicPartition
from dafka_core.ops.findings import Finding, ok, problem
from dafka_core.ops.metric_declarations import counter
from dafka_core.ops.store_extension import ExtensionNode, StoreExtension

if TYPE_CHECKING:
    from dafka_core.nodes.store import Store

ECHOED: Final = counter("echo_records", "count", "records that were copied")


@dataclass(frozen=True)
class EchoOptions(Options):
    """The options of the extension; its commands have them as flags."""

    echo: str = option("", "copy new records of this topic to topic `TOPIC.echo`", kind="TOPIC")


class TopicEcho(ExtensionNode):
    """Copies new records of a topic to the store's own partition of topic ``TOPIC.echo``."""

    metrics = (ECHOED,)

    def __init__(self, store: Store, topic: str) -> None:
        self._store, self._topic = store, topic
        self._own = TopicPartition(f"{topic}.echo", store.address)
        self._seen = store.log.changes.number
        self._ends = {info.tp: info.end for info in store.log.partitions(topic)}
        self.count = 0
        self._failure = ""
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topic-echo")
        self.is_open = True
        self._thread.start()

    @property
    def name(self) -> str:
        """The topic that it copies: a label of its metrics."""
        return self._topic

    def findings(self) -> Iterator[Finding]:
        """Yield whether it copies."""
        if self._failure:
            yield problem("echo", f"nothing more is copied: {self._failure}", "start it again")
        else:
            yield ok("echo", f"{self.count} records were copied")

    def close(self) -> None:
        """Stop; may be called twice."""
        self.is_open = False
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._store.log.changes.waking(self._wake, self._seen, frozenset({self._topic})):
                while self._wake.wait() and self.is_open:
                    self._wake.clear()
                    self._copy()
        except (DafkaError, TimeoutError) as error:
            self._failure = str(error) or "the disk takes too long"

    def _copy(self) -> None:
        log, append = self._store.log, self._store.append_queue.append
        for info in log.partitions(self._topic):
            start = max(self._ends.get(info.tp, 0), info.earliest)
            while start < info.end and (batches := log.read(info.tp, start, info.end)):
                values = [value for batch in batches for value in batch.values]
                self.count += len(append(self._own, values, timeout_s=10.0))
                start = self._ends[info.tp] = batches[-1].end


class EchoExtension(StoreExtension):
    """The class that the entry point names; ``--echo`` enables it."""

    switch = "echo"
    options = EchoOptions
    metrics = (ECHOED,)

    def start(self, store: Store, options: Mapping[str, Any]) -> TopicEcho:
        """Start copying; raise ConfigError for an option that is invalid."""
        return TopicEcho(store, EchoOptions.build(options).echo)
