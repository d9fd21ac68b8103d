"""A query that writes transactions, each once: its tasks are tried again, and twice at a time.

An attempt asks the store how far the partition is, stages its rows in an order of its own and
commits them, as ``dafka_spark/sink/staging.py`` does where its host comes back.  The
query moves to another store only when that has its last transaction, and finds it there, too.
"""

from __future__ import annotations

from concurrent.futures import Future
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dafka_core.errors import DafkaError
from dafka_core.model.log_entries import Commit, Stage
from dafka_core.model.records import RecordBatch, StagedTransaction
from dafka_core.model.values import Values
from tests.simulation.writer import Hosted

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.hosts import StoreHost

MAX_TRANSACTIONS = 8  # transactions that a query writes at the most


class ExactQuery(Hosted):
    """One partition of a query's output."""

    def __init__(self, cluster: Cluster, name: str, topic: str) -> None:
        super().__init__(cluster, name, topic)
        self.transactions = self.world.random.randint(1, MAX_TRANSACTIONS)
        self.number = 0  # of the transaction to write next
        self.home: StoreHost = self.world.random.choice(cluster.stores)
        most = 2 * cluster.shape.burst
        self.sizes = [self.world.random.randint(1, most) for _ in range(self.transactions)]
        self._again(0)

    @property
    def done(self) -> bool:
        """Return True if each transaction is committed."""
        return self.number >= self.transactions

    def rows(self, number: int) -> list[bytes]:
        """Return a transaction's records, in some order."""
        return [b"transaction %d row %d" % (number, i) for i in range(self.sizes[number])]

    def _again(self, number: int) -> None:
        self.world.after(self.world.between(0.05, 1), lambda: self._attempt(number))

    def _attempt(self, number: int) -> None:
        puts, mesh = self.home.puts, self.home.mesh
        if number < self.number - 1:
            return
        if puts is None or mesh is None:
            self._again(number)
            return
        info = self.home.disk.transaction_state(self.tp)
        if info.transaction is not None and info.transaction.version >= number:
            self._finished(number)
            return
        attempt = self.world.address()
        self.world.note(self.name, f"transaction {number}: {attempt[:4]} begins at {info.end}")
        rows = self.rows(number)
        self.world.random.shuffle(rows)
        cuts = sorted({0, len(rows), self.world.random.randint(0, len(rows))})
        promises: list[Future[Any]] = []
        for start, stop in pairwise(cuts):
            values = Values.of(rows[start:stop])
            batch = RecordBatch(self.tp, info.end + start, values)
            promises.append(puts.put(Stage(batch, attempt, number)))
            self._count(promises[-1], mesh, values.size_bytes + len(values))
        transaction = StagedTransaction(*self.tp, attempt, info.end, info.end + len(rows), number)
        promises[-1].add_done_callback(lambda done: self._staged(done, transaction))
        if self.world.chance(0.3):
            self._again(number)  # a second attempt beside the first

    def _staged(self, done: Future[Any], transaction: StagedTransaction) -> None:
        puts, mesh = self.home.puts, self.home.mesh
        if self._failed(done, transaction.version) or puts is None or mesh is None:
            return
        promise = puts.put(Commit((transaction,)))
        self._count(promise, mesh, 1)
        promise.add_done_callback(lambda done: self._committed(done, transaction))

    def _committed(self, done: Future[Any], transaction: StagedTransaction) -> None:
        if not self._failed(done, transaction.version):
            self.world.note(
                self.name,
                f"transaction {transaction.version}: {transaction.attempt[:4]} is committed",
            )
            self._finished(transaction.version)

    def _failed(self, done: Future[Any], number: int) -> bool:
        error = done.exception()
        if error is None:
            return False
        if not isinstance(error, DafkaError):
            self.world.fail(self.name, f"transaction {number} failed with {error!r}")
        self.world.note(self.name, f"transaction {number}: {type(error).__name__}")
        self._again(number)
        return True

    def _finished(self, number: int) -> None:
        self.cluster.checkers.on_written(
            self.name, self.home.disk, self.tp, number, self.rows(number)
        )
        if number < self.number:
            return
        self.number = number + 1
        self._move()
        if self.world.chance(0.3):
            self._again(number)  # the driver has not heard of it, and runs the batch once more
        if not self.done:
            self._again(self.number)

    def _move(self) -> None:
        held = self.home.disk.transaction_state(self.tp)
        for store in self.cluster.stores:
            if store.disk.transaction_state(self.tp)[::3] == held[::3] and self.world.chance(0.3):
                self.home = store
                self.world.note(self.name, f"goes on at {store.name}")

    def _count(self, promise: Future[Any], mesh: Any, size_bytes: int) -> None:
        mesh.put_bytes += size_bytes

        def give_back(done: Future[Any]) -> None:
            mesh.put_bytes -= size_bytes

        promise.add_done_callback(give_back)
