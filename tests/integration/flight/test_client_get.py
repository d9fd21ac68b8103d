"""Many ranges in one request, from a real service, and invalid streams."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dafka_core.errors import (
    ClosedError,
    ConfigError,
    DataLossError,
    InvalidRequestError,
    OffsetConflictError,
    StoreUnreachableError,
)
from dafka_core.flight import limits, server_requests
from dafka_core.flight.columns import schema_of
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.flight.store_client import Chunks, ClientKeys, StoreClient, records_of
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import (
    PARTITION,
    STORE,
    TOPIC,
    TP,
    Served,
    array,
    check,
    everything,
    put,
    put_all,
    read,
    stored,
    values,
    wait_for_end,
)


def partition(number: int) -> str:
    return f"P{number:03}"


def asked(number: int, start: int, end: int, **lives: EpochId) -> RecordRange:
    return RecordRange(TOPIC, partition(number), start, end, **lives)


def fill(served: Served, counts: list[int]) -> None:
    for number, count in enumerate(counts):
        served.extend(count, partition=partition(number))


def get(*ranges: RecordRange, **members: Any) -> GetRequest:
    return GetRequest(ranges, ("value",), partial=members.pop("partial", True), **members)


def read_ranges(
    client: StoreClient, ranges: list[RecordRange], *, times: bool = True, **members: Any
) -> dict[int, list[int]]:
    """Check the records; return the offsets of each partition."""
    found: dict[int, list[int]] = {}
    request = get(*ranges, times=times, **members)

    def checked(received: Chunks) -> Iterator[Any]:
        for columns, metadata in received:
            assert columns.num_rows <= request.max_records
            size_bytes = Values.from_arrow(columns.column(0)).size_bytes
            assert size_bytes <= request.max_bytes or columns.num_rows == 1
            yield columns, metadata

    def parsed(received: Chunks) -> Iterator[Any]:
        yield from records_of(request, checked(received))

    for batch in client.get(request.packed(), parsed, PATIENCE_S):
        assert list(batch.values) == values(batch.offset, batch.end)
        assert (batch.times is not None) == times
        if batch.times is not None:
            assert batch.times[:, 0].sum() == batch.count
        offsets = found.setdefault(int(batch.tp.partition[1:]), [])
        offsets.extend(range(batch.offset, batch.end))
    return found


@pytest.mark.parametrize(
    "sizes", [{}, {"max_records": 7}, {"max_records": 1}, {"max_bytes": 40}, {"max_bytes": 5_000}]
)
def test_many_ranges_come_with_one_request(
    served: Served, client: StoreClient, sizes: dict[str, int]
) -> None:
    counts = [10, 1, 2, 300, 5, 10, 64]
    fill(served, counts)
    ranges = [asked(number, min(2, count), count) for number, count in enumerate(counts)]
    ranges.append(asked(3, 0, 2))  # another part of the same partition
    expected = {number: list(range(2, count)) for number, count in enumerate(counts) if count > 2}
    expected[3] += [0, 1]
    for times, partial in product((True, False), repeat=2):
        assert read_ranges(client, ranges, times=times, partial=partial, **sizes) == expected


def test_what_is_not_held_is_left_out(served: Served, client: StoreClient) -> None:
    fill(served, [10, 10, 10, 10])
    served.log.trim(asked(1, 0, 1).tp, 5)
    ranges = [asked(0, 0, 10), asked(1, 0, 10), asked(2, 0, 11), asked(7, 0, 1), asked(3, 0, 10)]
    assert read_ranges(client, ranges) == {0: list(range(10)), 3: list(range(10))}
    assert read_ranges(client, [asked(7, 0, 1)]) == {}
    with pytest.raises(DataLossError) as lost:
        list(client.records(get(*ranges, partial=False), timeout_s=PATIENCE_S))
    assert (lost.value.partition, lost.value.wanted, lost.value.available) == (partition(1), 0, 5)


def test_another_history_is_left_out(served: Served, client: StoreClient) -> None:
    old, new = EpochId(1, 5, 1), EpochId(2, 6, 1)
    for number, life in enumerate((old, new)):
        tp, epoch = TopicPartition(TOPIC, partition(number)), Epoch(*life, 0, 0)
        served.log.append([RecordBatch(tp, 0, Values.of(values(0, 10)), epoch=epoch)])
    lives = {"life": new, "after": old}
    ranges = [asked(0, 0, 10, **lives), asked(0, 0, 10, life=old), asked(1, 5, 10, **lives)]
    assert read_ranges(client, ranges) == {0: list(range(10))}


def test_a_large_record_among_small_ones(served: Served, client: StoreClient) -> None:
    records = [b"a", b"b" * (20 << 20), b"c"]
    for number in range(2):
        served.log.append([RecordBatch.of(asked(number, 0, 1).tp, 0, records)])
    found: list[tuple[int, bytes]] = []
    ranges = [asked(0, 0, 3), asked(1, 0, 3)]
    for batch in client.records(get(*ranges), timeout_s=PATIENCE_S):
        assert batch.count == 1 or batch.values.size_bytes < 100
        found += [(int(batch.tp.partition[1:]), each) for each in batch.values]
    assert found == [(number, record) for number in range(2) for record in records]


def test_records_trimmed_under_a_reader_end_their_range(served: Served) -> None:
    end = 400_000
    for stop in range(40_000, end + 1, 40_000):
        served.extend(stop, partition=partition(0))
    served.extend(10, partition=partition(1))
    ranges = [asked(0, 0, end), asked(1, 0, 10)]
    came = served.client().records(get(*ranges), timeout_s=PATIENCE_S)
    found = [next(came)]
    served.log.trim(ranges[0].tp, end - 1)
    found += came
    assert [batch.count for batch in found if batch.tp == ranges[1].tp] == [10]
    first = [batch for batch in found if batch.tp == ranges[0].tp]
    assert [batch.offset for batch in first] == [0, *(batch.end for batch in first[:-1])]
    assert first[-1].end < end


def chunk(first: int, *parts: int) -> tuple[pa.RecordBatch, pa.Buffer]:
    """Return records from offset ``first`` on, declared as these parts: number, start and count."""
    rows = [(number, start, start + count, count, 0) for number, start, count in batched(parts)]
    count = sum(row[3] for row in rows)
    columns = pa.record_batch([array(first, first + count)], schema_of(["value"]))
    return columns, pa.py_buffer(np.array([1, len(rows), *chain(*rows)], "<i8").tobytes())


def batched(parts: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    return zip(parts[::3], parts[1::3], parts[2::3], strict=True)


WRONG: list[tuple[Any, str]] = [
    ([chunk(0, 1, 0, 5), chunk(0, 0, 0, 5)], "range 0 arrived after range 1"),
    ([chunk(0, 2, 0, 1)], "range 2 arrived"),  # of a range that does not exist
    ([chunk(0, -1, 0, 1)], "range -1 arrived"),
    ([(chunk(0, 0, 0, 5)[0], None)], "metadata"),
    ([(chunk(0, 0, 0, 4)[0], chunk(0, 0, 0, 5)[1])], "parts are not its records"),
    ([(chunk(0, 0, 0, 4)[0], pa.py_buffer(np.array([1, 1, 0, 0, 5, 4, 0])))], "4 records arrived"),
    ([(chunk(0, 0, 0, 1)[0].rename_columns(["key"]), chunk(0, 0, 0, 1)[1])], "not requested"),
]


@pytest.mark.parametrize(("came", "says"), WRONG)
def test_what_was_not_asked_for_is_an_error(came: list[Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        list(records_of(get(asked(0, 0, 5), asked(1, 0, 5)), iter(came)))


def test_a_stream_that_lies_is_the_stores_failure(
    served: Served, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(served, [3, 3])

    def wrong(parts: Any, *, times: bool) -> bytes:
        return np.array([1, 1, 0, 1, 7, 6, 0], "<i8").tobytes()

    monkeypatch.setattr(server_requests, "packed_parts", wrong)
    with pytest.raises(StoreUnreachableError, match="offsets 1 to 7 arrived instead of 0"):
        list(client.records(get(asked(0, 0, 3), asked(1, 0, 3)), timeout_s=PATIENCE_S))


def test_what_is_put_is_stored(served: Served, client: StoreClient) -> None:
    with put(client, 0) as first:
        first.write(array(0, 10_000))
        first.write(array(10_000, 10_000))
        first.write(array(10_000, 10_001))
        assert first.end == 10_001
        assert first.finish(PATIENCE_S) == 10_001
    assert served.log.end(TP) == 10_001
    with put(client, 10_001) as second:
        second.write(array(0, 20_000).slice(10_001))
        assert second.finish(PATIENCE_S) == 20_000
    stored(served, 20_000)


def test_a_put_of_nothing_tells_where_the_partition_ends(
    served: Served, client: StoreClient
) -> None:
    served.extend(7)
    with put(client, 7) as nothing:
        assert nothing.finish(PATIENCE_S) == 7
    stored(served, 7)


def test_values_are_cut_to_what_a_batch_may_have(served: Served, client: StoreClient) -> None:
    many = array(0, 150_000)
    large = pa.array([b"x" * (5 << 20)] * 8 + [b"y" * (20 << 20)], pa.binary())
    with put(client, 0) as cut:
        cut.write(many)
        cut.write(large)
        assert cut.finish(PATIENCE_S) == 150_009
    assert max(len(batch.values) for batch in served.backend.taken) == limits.MAX_BATCH_RECORDS
    sizes = [batch.values.size_bytes for batch in served.backend.taken]
    assert sizes[-4:] == [15 << 20, 15 << 20, 10 << 20, 20 << 20]


def test_a_conflict_in_the_middle_of_a_put(served: Served, client: StoreClient) -> None:
    with put(client, 0) as overtaken:
        overtaken.write(array(0, 10))
        assert overtaken.wait_durable(10, timeout_s=PATIENCE_S) == 10
        served.extend(15)
        overtaken.write(array(10, 20))
        for call in (lambda: overtaken.finish(PATIENCE_S), lambda: overtaken.write(array(0, 1))):
            with pytest.raises(OffsetConflictError) as conflict:
                call()
            assert (conflict.value.offset, conflict.value.end) == (10, 15)
    stored(served, 15)


def test_a_store_that_makes_no_progress_is_given_up(served: Served, client: StoreClient) -> None:
    served.backend.open.clear()
    with put(client, 0) as stuck:
        stuck.write(array(0, 10))
        with pytest.raises(
            StoreUnreachableError, match=r"it has written nothing to disk for 0\.2 s"
        ):
            stuck.wait_durable(10, timeout_s=0.2)
        with pytest.raises(
            StoreUnreachableError, match=r"it has written nothing to disk for 0\.2 s"
        ):
            stuck.finish(PATIENCE_S)
    megabytes = pa.array([b"x" * (1 << 20)] * 8, pa.binary())
    with pytest.raises(StoreUnreachableError, match=r"no progress for 0\.2 s"):
        put_all(client, 0, *[megabytes] * 100, timeout_s=0.2)
    served.backend.open.set()
    wait_until(lambda: served.service.context.puts.free == limits.MAX_PUTS)
    # Arrived records may be stored; nothing else changes.
    assert client.describe(timeout_s=PATIENCE_S) == served.location


def test_values_are_checked_before_they_leave(served: Served) -> None:
    client = served.client()
    with put(client, 0) as wrong:
        for bad in (
            pa.array(["a"]),
            pa.array([b"a"], pa.large_binary()),
            pa.array([b"a", None], pa.binary()),
            [b"a"],
            pa.chunked_array([[b"a"]]),
        ):
            with pytest.raises(ConfigError, match="must be an array of binary without nulls"):
                wrong.write(bad)
        wrong.write(array(0, 5))
        assert wrong.finish(PATIENCE_S) == 5
        with pytest.raises(ClosedError):
            wrong.write(array(5, 6))
        with pytest.raises(ClosedError):
            wrong.finish(1)


def test_a_put_that_is_left_ends(served: Served, client: StoreClient) -> None:
    for start in range(0, 200, 10):  # more than the store takes at a time
        with put(client, start) as left:
            left.write(array(start, start + 10))
        assert served.log.end(TP) == start + 10
        with pytest.raises(ClosedError):
            left.finish(PATIENCE_S)
        left.close()
    stored(served, 200)


def test_a_put_that_was_overtaken_hears_of_it_though_it_sends_nothing_more(
    served: Served, client: StoreClient
) -> None:
    with put(client, 0) as overtaken:
        overtaken.write(array(0, 10))
        assert overtaken.wait_durable(10, timeout_s=PATIENCE_S) == 10
        served.extend(12)
        overtaken.write(array(10, 11))
        started = time.monotonic()
        with pytest.raises(OffsetConflictError) as caught:
            overtaken.wait_durable(11, timeout_s=PATIENCE_S)
        assert caught.value.end == 12
        assert time.monotonic() - started < PATIENCE_S / 2  # acknowledged, without a retry


def write_and_interrupt(client: StoreClient, attempt: str = "") -> None:
    with put(client, 0, attempt=attempt) as interrupted:
        interrupted.write(array(0, 100))
        wait_until(lambda: interrupted.durable == 100)
        raise KeyboardInterrupt


def test_ctrl_c_says_what_is_stored(served: Served, client: StoreClient) -> None:
    with pytest.raises(KeyboardInterrupt) as ended:
        write_and_interrupt(client)
    (note,) = ended.value.__notes__
    assert "the store has the records up to offset 100 (exclusive)" in note
    assert put_all(client, 100, array(0, 200).slice(100)) == 200
    stored(served, 200)


def test_ctrl_c_has_what_was_staged_discarded(served: Served, client: StoreClient) -> None:
    with pytest.raises(KeyboardInterrupt) as ended:
        write_and_interrupt(client, "A" * 32)
    (note,) = ended.value.__notes__
    assert note.endswith(": the staged records are discarded")
    assert client.staged(timeout_s=PATIENCE_S) == []
    assert put_all(client, 0, array(0, 10)) == 10


def test_ctrl_c_before_anything_was_written_needs_no_word(
    served: Served, client: StoreClient
) -> None:
    with pytest.raises(KeyboardInterrupt) as ended, put(client, 0):
        raise KeyboardInterrupt
    assert not hasattr(ended.value, "__notes__")


def test_a_client_needs_a_location(served: Served) -> None:
    for locations in ((), ("grpc+unix:///nowhere",), ("http://a:1",), ("grpc://a",)):
        with pytest.raises(ConfigError, match="must have one like grpc://HOST:PORT"):
            StoreClient(StoreLocation(STORE, locations))


def test_the_socket_is_used_on_the_stores_machine_only(served: Served) -> None:
    unix, tcp = served.location.locations
    for location, expected in (
        (served.location, unix),
        (StoreLocation(STORE, (unix, tcp)), tcp),
        (StoreLocation(STORE, (unix, tcp), machine="another"), tcp),
        (StoreLocation(STORE, ("grpc+unix:///nowhere", tcp), machine=served.location.machine), tcp),
    ):
        with StoreClient(location) as client:
            client.describe(timeout_s=PATIENCE_S)
            assert client.uri == expected


def test_no_process_listens(directory: Path) -> None:
    with Served(directory) as served:
        location = served.location
    for dead in (
        location,
        StoreLocation(STORE, location.locations[1:]),
        StoreLocation(STORE, ("grpc://127.0.0.1:1",)),
        StoreLocation(STORE, ("grpc://no.such.host.invalid:1",)),
    ):
        with StoreClient(dead) as client:
            with pytest.raises(StoreUnreachableError):
                list(everything(client, timeout_s=5))
            with pytest.raises(StoreUnreachableError), client.put(TP, 0, timeout_s=5) as put:
                put.finish(5)
            with pytest.raises(StoreUnreachableError):
                client.heads(None, timeout_s=5)


def test_another_program_listens() -> None:
    import socketserver

    class Silent(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Silent) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            with (
                StoreClient(
                    StoreLocation(STORE, (f"grpc://127.0.0.1:{other.server_address[1]}",))
                ) as client,
                pytest.raises(StoreUnreachableError),
            ):
                client.heads(None, timeout_s=2)
        finally:
            other.shutdown()
            thread.join()


def test_a_restarted_store_is_found_again(directory: Path) -> None:
    with Served(directory) as first:
        first.extend(10)
        location = first.location
        client = StoreClient(location)
        assert client.heads(None, timeout_s=PATIENCE_S)[0].end == 10
    with Served(directory), client:
        # At its socket, which is unchanged; with a new session.
        wait_for_end(client, 10)
        assert client.describe(timeout_s=PATIENCE_S).session != location.session


def test_what_cannot_be_asked_is_refused_before_it_is_sent(served: Served) -> None:
    asking = served.client()
    for wrong, says in (
        (lambda: read(asking, 0, 1, max_records=0), "'max_records' = 0: must be `int` >= 1"),
        (lambda: read(asking, 0, 1, max_bytes="1"), "'max_bytes' = '1': must be `int`, got `str`"),
        (lambda: read(asking, 2, 1), "'ranges' = 1: must not be below start, which is 2"),
        (lambda: asking.heads([""], timeout_s=1), "'topics' = ''"),
        (lambda: asking.heads([7], timeout_s=1), "'topics' = 7"),  # type: ignore[list-item]
        (lambda: asking.offset_for_times([("t", "P", 2**63)], timeout_s=1), "'times'"),
        (lambda: asking.put(TopicPartition("t", ""), 0, timeout_s=1), "'partition' = ''"),
        (lambda: asking.put(TP, -1, timeout_s=1), "'start' = -1"),
        (lambda: asking.wait(TP, -1, timeout_s=1), "'end' = -1"),
        (lambda: asking.wait(TP, 1, timeout_s=3_601), "'timeout_s' = 3601: must be `float` <="),
    ):
        with pytest.raises(InvalidRequestError, match=says):
            wrong()


def test_an_answer_that_is_none_is_the_stores_fault(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = served.client()

    def check_answer(answer: bytes, questions: list[Callable[[], object]]) -> None:
        monkeypatch.setattr(server_requests, "act", lambda *_: iter([answer]))
        for ask in questions:
            with pytest.raises(StoreUnreachableError, match="answer") as unreadable:
                ask()
            assert unreadable.value.store == STORE

    done: list[Callable[[], object]] = [
        lambda: asking.commit([], timeout_s=PATIENCE_S),
        lambda: asking.discard([], timeout_s=PATIENCE_S),
    ]
    questions = [
        lambda: asking.heads(None, timeout_s=PATIENCE_S),
        lambda: asking.offset_for_times([(TOPIC, PARTITION, 0)], timeout_s=PATIENCE_S),
        lambda: asking.wait(TP, 1, timeout_s=1),
        lambda: asking.transaction_states([TP], timeout_s=PATIENCE_S),
        lambda: asking.describe(timeout_s=PATIENCE_S),
        lambda: asking.stores(timeout_s=PATIENCE_S),
    ]
    for answer in (b"", b"[]", b"{}", b'{"v": 2}', b"\xff"):
        check_answer(answer, [*questions, *done])
    for answer in (b'{"v": 1, "heads": 3}', b'{"v": 1}'):
        check_answer(answer, questions)
    # Invalid states, and none for the partition.
    for states in ([[5, 5, "", [1, 2]]], [["x", 5, "", None]], []):
        answer = json.dumps({"v": 1, "transactions": states}).encode()
        check_answer(answer, [lambda: asking.transaction_states([TP], timeout_s=PATIENCE_S)])


def test_a_closed_generator_ends_the_stream(served: Served) -> None:
    for stop in range(40_000, 400_001, 40_000):
        served.extend(stop)
    client = served.client()
    batches = [read(client, 0, 400_000, max_records=1_000) for _ in range(80)]
    for each in batches:  # more than the store serves at a time
        next(each)
        each.close()
        assert list(each) == []
    check(read(client, 0, 400_000), 0, 400_000)


def test_a_closed_client_ends_what_goes_on(large: Path) -> None:
    with Served(large) as served:
        client = served.client()
        stream = everything(client, max_records=10)
        next(stream)
        writing = client.put(TopicPartition("u", "P"), 0, timeout_s=PATIENCE_S)
        writing.write(array(0, 1))
        client.close()
        client.close()
        with pytest.raises(ClosedError):
            list(stream)
        with pytest.raises(StoreUnreachableError):
            writing.finish(5)
        writing.close()
        for ask in (
            lambda: client.heads(None, timeout_s=1),
            lambda: list(everything(client)),
            lambda: client.put(TP, 0, timeout_s=1),
        ):
            with pytest.raises(ClosedError, match="store's client is closed"):
                ask()
        wait_until(lambda: served.service.context.gets.free == limits.MAX_GETS)
        wait_until(lambda: served.service.context.puts.free == limits.MAX_PUTS)


def test_a_call_that_begins_while_its_client_is_closed_is_answered(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow's own ``close`` would free what the call is about to use: a segmentation fault."""
    client, options_of = served.client(), ClientKeys.call_options

    def closing(keys: ClientKeys, timeout_s: float | None = None) -> Any:
        client.close()
        return options_of(keys, timeout_s)

    monkeypatch.setattr(ClientKeys, "call_options", closing)
    assert client.heads(None, timeout_s=PATIENCE_S) == []
