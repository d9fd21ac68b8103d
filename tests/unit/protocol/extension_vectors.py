"""The messages of our extensions, by hand from the grammar in ``docs/wire.md``."""

from __future__ import annotations

from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.records import NO_VERSION, KnownStore, PartitionInfo, Transaction
from dafka_core.protocol.messages import (
    DirectRecordBatch,
    DirectRecordBatches,
    EpochAck,
    FetchBatch,
    HeadsQuery,
    HeadsReply,
    HistoryQuery,
    HistoryReply,
    RecordBatchMessage,
    RecordTooLarge,
    StoreEndpoints,
    StoresKnown,
    TimesQuery,
    TimesReply,
)
from tests.unit.protocol.vector import both

_BATCH_OF_THREE = b"\3\0\0\0" + b"\0\0\0\0" + b"\2\0\0\0" + b"one" + b"" + b"ab"
_FIRST_EPOCH = Epoch(1, 0x0102030405060708, 1, 0, 0)
_EPOCH = Epoch(258, 0x1112131415161718, 2, 5, 0x2122232425262728)
_ONE_RUN = bytes.fromhex("00401e18240a0600 03000000")
_RECORD_BATCH = RecordBatchMessage("hello", "P1", 7, 3, _ONE_RUN + _BATCH_OF_THREE, None, _EPOCH, 1)
_DIRECT_BATCH = DirectRecordBatch("C1", "hello", "P1", 0x0102030405060708, 1, b"\1\0\0\0x")
_TRANSACTION_BATCH = RecordBatchMessage(
    "hello", "P1", 7, 3, _BATCH_OF_THREE, Transaction(258, 5, 11)
)
_DIRECT_TRANSACTION_BATCH = DirectRecordBatch(
    "C1",
    "hello",
    "P1",
    7,
    3,
    _BATCH_OF_THREE,
    Transaction(NO_VERSION, 7, 0x0102030405060708),
    _FIRST_EPOCH,
)
_PLACE = "02 5031 05 68656c6c6f"
_NO_TRANSACTION = "0000000000000000 0000000000000000 0000000000000000"
_TRANSACTION = "0000000000000102 0000000000000005 000000000000000b"
_NO_VERSION = "ffffffffffffffff 0000000000000007 0102030405060708"
_NO_EPOCH = "00000000 0000000000000000 00 0000000000000000 0000000000000000"
_NO_RUNS = "00000000"
_FIRST_EPOCH_OCTETS = "00000001 0102030405060708 01 0000000000000000 0000000000000000"
_EPOCH_OCTETS = "00000102 1112131415161718 02 0000000000000005 2122232425262728"
_HEADS_QUERY = HeadsQuery("C1", 258, ("hello", "b"))
_TIMES_QUERY = TimesQuery("C1", 258, "hello", "P1", 3, 9)
_HEADS = (PartitionInfo("hello", "P1", 3, 9, _EPOCH.life), PartitionInfo("b", "P2", 0, 0))
_HEADS_REPLY = HeadsReply("C1", 258, "S1", 1, 3, _HEADS)
_TIMES = ((3, 1_700_000_000_000_000), (5, 0x0102030405060708))
_TIMES_REPLY = TimesReply("C1", 258, "S1", 0, 1, _TIMES)
_RANGES = (PartitionInfo("hello", "P1", 3, 5), PartitionInfo("b", "P2", 0, 1))
_FETCH_BATCH = FetchBatch("S1", "C1", _RANGES)
_TWO_RUNS = bytes.fromhex("00401e18240a0600 0807060504030201 02000000 01000000")
_BATCHES = DirectRecordBatches("C1", _RANGES, (_FIRST_EPOCH, None), 2, _TWO_RUNS + _BATCH_OF_THREE)
_ONE_RUN_HEX = "00401e18240a0600 03000000 "
_TWO_RUNS_HEX = "00401e18240a0600 0807060504030201 02000000 01000000 "
_THREE_HEX = "03000000 00000000 02000000 6f6e65 6162"
_RANGES_HEX = (
    "00000002 05 68656c6c6f 02 5031 0000000000000003 0000000000000005"
    " 01 62 02 5032 0000000000000000 0000000000000001"
)
_EPOCH_ACK = EpochAck("P1", "hello", 7, "S1", _EPOCH.life)
_HISTORY_QUERY = HistoryQuery("C1", 258, "hello", "P1")
_PROMISE_QUERY = HistoryQuery("P1", 258, "hello", "P1", _EPOCH.life)
_HISTORY_REPLY = HistoryReply(
    "P1",
    258,
    "S1",
    "hello",
    "P1",
    9,
    EpochId(259, 0x3132333435363738, 1),
    (_FIRST_EPOCH, _EPOCH),
    ("S2",),
    Transaction(3, 5, 9),
)
_STORE_ENDPOINTS = StoreEndpoints("C1", "S1", ("grpc://h:1", "grpc+unix:///s"))
_STORES_KNOWN = StoresKnown(
    "C1", "S1", (KnownStore("S2", "tcp://h:5556", 1_700_000_000_000_000, True), KnownStore("S3"))
)
_TOO_LARGE = RecordTooLarge("C1", "hello", "P1", 7, 0x0102030405060708)

EXTENSION_VECTORS = [
    *both(_TOO_LARGE, "4f", "4331", f"{_PLACE} 0000000000000007 0102030405060708"),
    *both(
        _RECORD_BATCH,
        "72",
        "68656c6c6f",
        f"{_PLACE} 0000000000000007 00000003 {_NO_TRANSACTION} {_EPOCH_OCTETS} 00000001",
        _ONE_RUN_HEX + _THREE_HEX,
    ),
    *both(
        _TRANSACTION_BATCH,
        "72",
        "68656c6c6f",
        f"{_PLACE} 0000000000000007 00000003 {_TRANSACTION} {_NO_EPOCH} {_NO_RUNS}",
        _THREE_HEX,
    ),
    *both(
        _DIRECT_BATCH,
        "70",
        "4331",
        f"{_PLACE} 0102030405060708 00000001 {_NO_TRANSACTION} {_NO_EPOCH} {_NO_RUNS}",
        "01000000 78",
    ),
    *both(
        _DIRECT_TRANSACTION_BATCH,
        "70",
        "4331",
        f"{_PLACE} 0000000000000007 00000003 {_NO_VERSION} {_FIRST_EPOCH_OCTETS} {_NO_RUNS}",
        _THREE_HEX,
    ),
    *both(
        _HEADS_QUERY, "51", "", "02 4331 0000000000000102 00000002 00000005 68656c6c6f 00000001 62"
    ),
    *both(HeadsQuery("C1", 0, ()), "51", "", "02 4331 0000000000000000 00000000"),
    *both(
        _TIMES_QUERY,
        "54",
        "",
        "02 4331 0000000000000102 05 68656c6c6f 02 5031 0000000000000003 0000000000000009",
    ),
    *both(
        _HEADS_REPLY,
        "73",
        "4331",
        "0000000000000102 02 5331 00000001 00000003 00000002"
        " 05 68656c6c6f 02 5031 0000000000000003 0000000000000009 00000102 1112131415161718 02"
        " 01 62 02 5032 0000000000000000 0000000000000000 00000000 0000000000000000 00",
    ),
    *both(
        HeadsReply("C1", 258, "S1", 0, 1, ()),
        "73",
        "4331",
        "0000000000000102 02 5331 00000000 00000001 00000000",
    ),
    *both(
        _TIMES_REPLY,
        "75",
        "4331",
        "0000000000000102 02 5331 00000000 00000001 00000002"
        " 0000000000000003 00060a24181e4000 0000000000000005 0102030405060708",
    ),
    *both(_FETCH_BATCH, "42", "5331", f"02 4331 {_RANGES_HEX}"),
    *both(
        _BATCHES,
        "43",
        "4331",
        f"{_RANGES_HEX} 00000002 {_FIRST_EPOCH_OCTETS} {_NO_EPOCH} 00000002",
        _TWO_RUNS_HEX + _THREE_HEX,
    ),
    *both(
        _STORE_ENDPOINTS,
        "4e",
        "4331",
        "02 5331 00000002 0000000a 677270633a2f2f683a31 0000000e 677270632b756e69783a2f2f2f73",
    ),
    *both(
        _STORES_KNOWN,
        "58",
        "4331",
        "02 5331 00000002 02 5332 0000000c 7463703a2f2f683a35353536 00060a24181e4000 01"
        " 02 5333 00000000 0000000000000000 00",
    ),
    *both(
        _EPOCH_ACK,
        "49",
        "5031",
        "05 68656c6c6f 0000000000000007 02 5331 00000102 1112131415161718 02",
    ),
    *both(
        _HISTORY_QUERY,
        "56",
        "",
        "02 4331 0000000000000102 05 68656c6c6f 02 5031 00000000 0000000000000000 00",
    ),
    *both(
        _PROMISE_QUERY,
        "56",
        "",
        "02 5031 0000000000000102 05 68656c6c6f 02 5031 00000102 1112131415161718 02",
    ),
    *both(
        _HISTORY_REPLY,
        "4a",
        "5031",
        "0000000000000102 02 5331 05 68656c6c6f 02 5031 0000000000000009"
        f" 00000103 3132333435363738 01 00000002 {_FIRST_EPOCH_OCTETS} {_EPOCH_OCTETS}"
        " 00000001 02 5332 0000000000000003 0000000000000005 0000000000000009",
    ),
]
