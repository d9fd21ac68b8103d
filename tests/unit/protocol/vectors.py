"""A message and its frames, as a fact the codec is held against."""

from typing import NamedTuple

from dafka_core.config.node_options import C_LAYOUT, RFC46
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.records import NO_VERSION, KnownStore, PartitionInfo, Transaction
from dafka_core.protocol import messages as m


class Vector(NamedTuple):
    """A message, its frames, and the layout they are in."""

    message: m.Message
    frames: list[bytes]
    layout: str

    @property
    def name(self) -> str:
        """For the names of tests; it is not unique."""
        return f"{self.layout}-{type(self.message).__name__}"


def c(message: m.Message, *frames: str) -> Vector:
    return Vector(message, [bytes.fromhex(frame) for frame in frames], C_LAYOUT)


def rfc46(message: m.Message, *frames: str) -> Vector:
    return Vector(message, [bytes.fromhex(frame) for frame in frames], RFC46)


def both(message: m.Message, begin: str, fields: str, *content: str) -> list[Vector]:
    """Return a message in both layouts; it begins with its identifier and its topic."""
    return [
        c(message, f"{begin} 00 01 {fields}", *content),
        rfc46(message, begin, f"aaa5 {begin[:2]} 01 {fields}", *content),
    ]


_BATCH_OF_THREE = b"\3\0\0\0" + b"\0\0\0\0" + b"\2\0\0\0" + b"one" + b"" + b"ab"
_FIRST_EPOCH = Epoch(1, 0x0102030405060708, 1, 0, 0)
_EPOCH = Epoch(258, 0x1112131415161718, 2, 5, 0x2122232425262728)
_ONE_RUN = bytes.fromhex("00401e18240a0600 03000000")
_RECORD_BATCH = m.RecordBatchMessage(
    "hello", "P1", 7, 3, _ONE_RUN + _BATCH_OF_THREE, None, _EPOCH, 1
)
_DIRECT_BATCH = m.DirectRecordBatch("C1", "hello", "P1", 0x0102030405060708, 1, b"\1\0\0\0x")
_TRANSACTION_BATCH = m.RecordBatchMessage(
    "hello", "P1", 7, 3, _BATCH_OF_THREE, Transaction(258, 5, 11)
)
_DIRECT_TRANSACTION_BATCH = m.DirectRecordBatch(
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
_HEADS_QUERY = m.HeadsQuery("C1", 258, ("hello", "b"))
_TIMES_QUERY = m.TimesQuery("C1", 258, "hello", "P1", 3, 9)
_HEADS = (PartitionInfo("hello", "P1", 3, 9, _EPOCH.life), PartitionInfo("b", "P2", 0, 0))
_HEADS_REPLY = m.HeadsReply("C1", 258, "S1", 1, 3, _HEADS)
_TIMES = ((3, 1_700_000_000_000_000), (5, 0x0102030405060708))
_TIMES_REPLY = m.TimesReply("C1", 258, "S1", 0, 1, _TIMES)
_RANGES = (PartitionInfo("hello", "P1", 3, 5), PartitionInfo("b", "P2", 0, 1))
_FETCH_BATCH = m.FetchBatch("S1", "C1", _RANGES)
_TWO_RUNS = bytes.fromhex("00401e18240a0600 0807060504030201 02000000 01000000")
_BATCHES = m.DirectRecordBatches(
    "C1", _RANGES, (_FIRST_EPOCH, None), 2, _TWO_RUNS + _BATCH_OF_THREE
)
_ONE_RUN_HEX = "00401e18240a0600 03000000 "
_TWO_RUNS_HEX = "00401e18240a0600 0807060504030201 02000000 01000000 "
_THREE_HEX = "03000000 00000000 02000000 6f6e65 6162"
_RANGES_HEX = (
    "00000002 05 68656c6c6f 02 5031 0000000000000003 0000000000000005"
    " 01 62 02 5032 0000000000000000 0000000000000001"
)
_EPOCH_ACK = m.EpochAck("hello", "P1", 7, "S1", _EPOCH.life)
_HISTORY_QUERY = m.HistoryQuery("C1", 258, "hello", "P1")
_PROMISE_QUERY = m.HistoryQuery("P1", 258, "hello", "P1", _EPOCH.life)
_HISTORY_REPLY = m.HistoryReply(
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
_STORE_ENDPOINTS = m.StoreEndpoints("C1", "S1", ("grpc://h:1", "grpc+unix:///s"))
_STORES_KNOWN = m.StoresKnown(
    "C1", "S1", (KnownStore("S2", "tcp://h:5556", 1_700_000_000_000_000, True), KnownStore("S3"))
)
_TOO_LARGE = m.RecordTooLarge("C1", "hello", "P1", 7, 0x0102030405060708)

EXTENSION_VECTORS = [
    *both(_TOO_LARGE, "4f 4331", f"{_PLACE} 0000000000000007 0102030405060708"),
    *both(
        _RECORD_BATCH,
        "72 68656c6c6f",
        f"{_PLACE} 0000000000000007 00000003 {_NO_TRANSACTION} {_EPOCH_OCTETS} 00000001",
        _ONE_RUN_HEX + _THREE_HEX,
    ),
    *both(
        _TRANSACTION_BATCH,
        "72 68656c6c6f",
        f"{_PLACE} 0000000000000007 00000003 {_TRANSACTION} {_NO_EPOCH} {_NO_RUNS}",
        _THREE_HEX,
    ),
    *both(
        _DIRECT_BATCH,
        "70 4331",
        f"{_PLACE} 0102030405060708 00000001 {_NO_TRANSACTION} {_NO_EPOCH} {_NO_RUNS}",
        "01000000 78",
    ),
    *both(
        _DIRECT_TRANSACTION_BATCH,
        "70 4331",
        f"{_PLACE} 0000000000000007 00000003 {_NO_VERSION} {_FIRST_EPOCH_OCTETS} {_NO_RUNS}",
        _THREE_HEX,
    ),
    *both(_HEADS_QUERY, "51", "02 4331 0000000000000102 00000002 00000005 68656c6c6f 00000001 62"),
    *both(m.HeadsQuery("C1", 0, ()), "51", "02 4331 0000000000000000 00000000"),
    *both(
        _TIMES_QUERY,
        "54",
        "02 4331 0000000000000102 05 68656c6c6f 02 5031 0000000000000003 0000000000000009",
    ),
    *both(
        _HEADS_REPLY,
        "73 4331",
        "0000000000000102 02 5331 00000001 00000003 00000002"
        " 05 68656c6c6f 02 5031 0000000000000003 0000000000000009 00000102 1112131415161718 02"
        " 01 62 02 5032 0000000000000000 0000000000000000 00000000 0000000000000000 00",
    ),
    *both(
        m.HeadsReply("C1", 258, "S1", 0, 1, ()),
        "73 4331",
        "0000000000000102 02 5331 00000000 00000001 00000000",
    ),
    *both(
        _TIMES_REPLY,
        "75 4331",
        "0000000000000102 02 5331 00000000 00000001 00000002"
        " 0000000000000003 00060a24181e4000 0000000000000005 0102030405060708",
    ),
    *both(_FETCH_BATCH, "42 5331", f"02 4331 {_RANGES_HEX}"),
    *both(
        _BATCHES,
        "43 4331",
        f"{_RANGES_HEX} 00000002 {_FIRST_EPOCH_OCTETS} {_NO_EPOCH} 00000002",
        _TWO_RUNS_HEX + _THREE_HEX,
    ),
    *both(
        _STORE_ENDPOINTS,
        "4e 4331",
        "02 5331 00000002 0000000a 677270633a2f2f683a31 0000000e 677270632b756e69783a2f2f2f73",
    ),
    *both(
        _STORES_KNOWN,
        "58 4331",
        "02 5331 00000002 02 5332 0000000c 7463703a2f2f683a35353536 00060a24181e4000 01"
        " 02 5333 00000000 0000000000000000 00",
    ),
    *both(
        _EPOCH_ACK, "49 5031", "05 68656c6c6f 0000000000000007 02 5331 00000102 1112131415161718 02"
    ),
    *both(
        _HISTORY_QUERY,
        "56",
        "02 4331 0000000000000102 05 68656c6c6f 02 5031 00000000 0000000000000000 00",
    ),
    *both(
        _PROMISE_QUERY,
        "56",
        "02 5031 0000000000000102 05 68656c6c6f 02 5031 00000102 1112131415161718 02",
    ),
    *both(
        _HISTORY_REPLY,
        "4a 5031",
        "0000000000000102 02 5331 05 68656c6c6f 02 5031 0000000000000009"
        f" 00000103 3132333435363738 01 00000002 {_FIRST_EPOCH_OCTETS} {_EPOCH_OCTETS}"
        " 00000001 02 5332 0000000000000003 0000000000000005 0000000000000009",
    ),
]


PRODUCER = "640AC1809C7044FD9C4E5673ABD1BC5E"
STORE_READER = "C907107406D149E897A2DEA4F157F211"
STORE_WRITER = "3B6B7CF3E064452E83D012EC823A4DD9"
CONSUMER_1 = "21962C91115348329557DE71C90C3718"
CONSUMER_2 = "8E1BBB578999443B8818C5851AFC9A3F"


RECORDED_VECTORS = [
    c(
        m.ConsumerHello("", CONSUMER_1, ()),
        "57 00 01 20 3231393632433931313135333438333239353537444537314339304333373138 00000000",
    ),
    c(
        m.GetHeads("hello", CONSUMER_1),
        "47 68656c6c6f 00 01 20 3231393632433931313135333438333239353537444537314339304333373138",
    ),
    c(
        m.RecordMessage("hello", PRODUCER, 0, b"hello 1"),
        "4d 68656c6c6f 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000000",
        "68656c6c6f2031",
    ),
    c(
        m.Head("hello", PRODUCER, 2),
        "48 68656c6c6f 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000002",
    ),
    c(
        m.StoreHello("", STORE_READER),
        "4c 00 01 20 4339303731303734303644313439453839374132444541344631353746323131",
    ),
    c(
        m.StoreHello(CONSUMER_1, STORE_READER),
        "4c 3231393632433931313135333438333239353537444537314339304333373138 00 01"
        " 20 4339303731303734303644313439453839374132444541344631353746323131",
    ),
    c(
        m.ConsumerHello(STORE_READER, CONSUMER_1, ("hello",)),
        "57 4339303731303734303644313439453839374132444541344631353746323131 00 01"
        " 20 3231393632433931313135333438333239353537444537314339304333373138"
        " 00000001 00000005 68656c6c6f",
    ),
    c(
        m.Fetch(STORE_WRITER, "hello", PRODUCER, 0, 100000),
        "46 3634304143313830394337303434464439433445353637334142443142433545 00 01"
        " 20 3342364237434633453036343435324538334430313245433832334134444439 05 68656c6c6f"
        " 0000000000000000 000186a0",
    ),
    c(
        m.DirectRecord(STORE_WRITER, "hello", PRODUCER, 0, b"hello 1"),
        "44 3342364237434633453036343435324538334430313245433832334134444439 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000000",
        "68656c6c6f2031",
    ),
    c(
        m.Ack("hello", PRODUCER, 2),
        "4b 3634304143313830394337303434464439433445353637334142443142433545 00 01"
        " 05 68656c6c6f 0000000000000002",
    ),
    c(
        m.DirectHead(CONSUMER_2, "hello", PRODUCER, 2),
        "45 3845314242423537383939393434334238383138433538353141464339413346 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000002",
    ),
]

RFC46_VECTORS = [
    rfc46(
        m.RecordMessage("hello", "P1", 7, b"\x00one"),
        "4d 68656c6c6f",
        "aaa5 4d 01 02 5031 05 68656c6c6f 0000000000000007",
        "006f6e65",
    ),
    rfc46(
        m.DirectRecord("C1", "hello", "P1", 0x0102030405060708, b""),
        "44 4331",
        "aaa5 44 01 02 5031 05 68656c6c6f 0102030405060708",
        "",
    ),
    rfc46(
        m.Fetch("C1", "hello", "P1", 256, 99),
        "46 5031",
        "aaa5 46 01 02 4331 05 68656c6c6f 0000000000000100 00000063",
    ),
    rfc46(
        m.Ack("hello", "P1", 7, "S1"),
        "4b 5031",
        "aaa5 4b 01 02 5331 05 68656c6c6f 0000000000000007",
    ),
    rfc46(m.Ack("hello", "P1", 7), "4b 5031", "aaa5 4b 01 00 05 68656c6c6f 0000000000000007"),
    rfc46(
        m.Head("hello", "P1", 7),
        "48 68656c6c6f",
        "aaa5 48 01 02 5031 05 68656c6c6f 0000000000000007",
    ),
    rfc46(
        m.DirectHead("C1", "hello", "P1", 7),
        "45 4331",
        "aaa5 45 01 02 5031 05 68656c6c6f 0000000000000007",
    ),
    rfc46(m.GetHeads("hello", "C1"), "47 68656c6c6f", "aaa5 47 01 02 4331"),
    rfc46(m.GetHeads("", "C1"), "47", "aaa5 47 01 02 4331"),
    rfc46(
        m.ConsumerHello("S1", "C1", ("hello", "b")),
        "57 5331",
        "aaa5 57 01 02 4331 00000002 00000005 68656c6c6f 00000001 62",
    ),
    rfc46(m.ConsumerHello("", "C1", ()), "57", "aaa5 57 01 02 4331 00000000"),
    rfc46(m.StoreHello("C1", "S1"), "4c 4331", "aaa5 4c 01 02 5331"),
    rfc46(m.StoreHello("", "S1"), "4c", "aaa5 4c 01 02 5331"),
]

VECTORS = [*RECORDED_VECTORS, *RFC46_VECTORS, *EXTENSION_VECTORS]
