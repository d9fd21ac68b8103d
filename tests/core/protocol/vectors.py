"""Messages and their frames, as facts the codec is held against.

``RECORDED_VECTORS`` were recorded from deployed nodes: a store, a producer and two consumers on
one machine, each message once.  The others were written by hand from the grammar in
``docs/wire.md``, never with the encoder.  Blanks in the hexadecimal stand between fields.
"""

from __future__ import annotations

from typing import NamedTuple

from dafka_core.protocol.codec import C_LAYOUT, RFC46
from dafka_core.protocol.messages import (
    Ack,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectRecordBatch,
    Fetch,
    GetHeads,
    Head,
    HeadEntry,
    HeadsQuery,
    HeadsReply,
    Message,
    RecordBatchMessage,
    RecordMessage,
    StoreEndpoints,
    StoreHello,
    TimeEntry,
    TimesQuery,
    TimesReply,
)
from dafka_core.records import NO_VERSION, Transaction

PRODUCER = "640AC1809C7044FD9C4E5673ABD1BC5E"
STORE_READER = "C907107406D149E897A2DEA4F157F211"
STORE_WRITER = "3B6B7CF3E064452E83D012EC823A4DD9"
CONSUMER_1 = "21962C91115348329557DE71C90C3718"
CONSUMER_2 = "8E1BBB578999443B8818C5851AFC9A3F"


class Vector(NamedTuple):
    """A message, its frames, and the layout they are in."""

    message: Message
    frames: list[bytes]
    layout: str

    @property
    def name(self) -> str:
        """For the names of tests; it is not unique."""
        return f"{self.layout}-{type(self.message).__name__}"


def _deployed(message: Message, *frames: str) -> Vector:
    return Vector(message, [bytes.fromhex(frame) for frame in frames], C_LAYOUT)


def _rfc46(message: Message, *frames: str) -> Vector:
    return Vector(message, [bytes.fromhex(frame) for frame in frames], RFC46)


RECORDED_VECTORS = [
    _deployed(
        ConsumerHello("", CONSUMER_1, ()),
        "57 00 01 20 3231393632433931313135333438333239353537444537314339304333373138 00000000",
    ),
    _deployed(
        GetHeads("hello", CONSUMER_1),
        "47 68656c6c6f 00 01 20 3231393632433931313135333438333239353537444537314339304333373138",
    ),
    _deployed(
        RecordMessage("hello", PRODUCER, 0, b"hello 1"),
        "4d 68656c6c6f 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000000",
        "68656c6c6f2031",
    ),
    _deployed(
        RecordMessage("hello", PRODUCER, 1, b"hello 2"),
        "4d 68656c6c6f 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000001",
        "68656c6c6f2032",
    ),
    _deployed(
        RecordMessage("hello", PRODUCER, 2, b"hello 3"),
        "4d 68656c6c6f 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000002",
        "68656c6c6f2033",
    ),
    _deployed(
        Head("hello", PRODUCER, 2),
        "48 68656c6c6f 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000002",
    ),
    _deployed(
        StoreHello("", STORE_READER),
        "4c 00 01 20 4339303731303734303644313439453839374132444541344631353746323131",
    ),
    _deployed(
        StoreHello(CONSUMER_1, STORE_READER),
        "4c 3231393632433931313135333438333239353537444537314339304333373138 00 01"
        " 20 4339303731303734303644313439453839374132444541344631353746323131",
    ),
    _deployed(
        ConsumerHello(STORE_READER, CONSUMER_1, ("hello",)),
        "57 4339303731303734303644313439453839374132444541344631353746323131 00 01"
        " 20 3231393632433931313135333438333239353537444537314339304333373138"
        " 00000001 00000005 68656c6c6f",
    ),
    _deployed(
        Fetch(PRODUCER, STORE_WRITER, "hello", 0, 100000),
        "46 3634304143313830394337303434464439433445353637334142443142433545 00 01"
        " 20 3342364237434633453036343435324538334430313245433832334134444439 05 68656c6c6f"
        " 0000000000000000 000186a0",
    ),
    _deployed(
        DirectRecord(STORE_WRITER, "hello", PRODUCER, 0, b"hello 1"),
        "44 3342364237434633453036343435324538334430313245433832334134444439 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000000",
        "68656c6c6f2031",
    ),
    _deployed(
        DirectRecord(STORE_WRITER, "hello", PRODUCER, 1, b"hello 2"),
        "44 3342364237434633453036343435324538334430313245433832334134444439 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000001",
        "68656c6c6f2032",
    ),
    _deployed(
        DirectRecord(STORE_WRITER, "hello", PRODUCER, 2, b"hello 3"),
        "44 3342364237434633453036343435324538334430313245433832334134444439 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000002",
        "68656c6c6f2033",
    ),
    _deployed(
        Ack(PRODUCER, "hello", 2),
        "4b 3634304143313830394337303434464439433445353637334142443142433545 00 01"
        " 05 68656c6c6f 0000000000000002",
    ),
    _deployed(
        ConsumerHello("", CONSUMER_2, ()),
        "57 00 01 20 3845314242423537383939393434334238383138433538353141464339413346 00000000",
    ),
    _deployed(
        StoreHello(CONSUMER_2, STORE_READER),
        "4c 3845314242423537383939393434334238383138433538353141464339413346 00 01"
        " 20 4339303731303734303644313439453839374132444541344631353746323131",
    ),
    _deployed(
        GetHeads("hello", CONSUMER_2),
        "47 68656c6c6f 00 01 20 3845314242423537383939393434334238383138433538353141464339413346",
    ),
    _deployed(
        ConsumerHello(STORE_READER, CONSUMER_2, ("hello",)),
        "57 4339303731303734303644313439453839374132444541344631353746323131 00 01"
        " 20 3845314242423537383939393434334238383138433538353141464339413346"
        " 00000001 00000005 68656c6c6f",
    ),
    _deployed(
        DirectHead(CONSUMER_2, "hello", PRODUCER, 2),
        "45 3845314242423537383939393434334238383138433538353141464339413346 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000002",
    ),
    _deployed(
        Fetch(PRODUCER, CONSUMER_2, "hello", 0, 100000),
        "46 3634304143313830394337303434464439433445353637334142443142433545 00 01"
        " 20 3845314242423537383939393434334238383138433538353141464339413346 05 68656c6c6f"
        " 0000000000000000 000186a0",
    ),
    _deployed(
        DirectRecord(CONSUMER_2, "hello", PRODUCER, 0, b"hello 1"),
        "44 3845314242423537383939393434334238383138433538353141464339413346 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000000",
        "68656c6c6f2031",
    ),
    _deployed(
        DirectRecord(CONSUMER_2, "hello", PRODUCER, 1, b"hello 2"),
        "44 3845314242423537383939393434334238383138433538353141464339413346 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000001",
        "68656c6c6f2032",
    ),
    _deployed(
        DirectRecord(CONSUMER_2, "hello", PRODUCER, 2, b"hello 3"),
        "44 3845314242423537383939393434334238383138433538353141464339413346 00 01"
        " 20 3634304143313830394337303434464439433445353637334142443142433545 05 68656c6c6f"
        " 0000000000000002",
        "68656c6c6f2033",
    ),
]

RFC46_VECTORS = [
    _rfc46(
        RecordMessage("hello", "P1", 7, b"\x00one"),
        "4d 68656c6c6f",
        "aaa5 4d 01 02 5031 05 68656c6c6f 0000000000000007",
        "006f6e65",
    ),
    _rfc46(
        DirectRecord("C1", "hello", "P1", 0x0102030405060708, b""),
        "44 4331",
        "aaa5 44 01 02 5031 05 68656c6c6f 0102030405060708",
        "",
    ),
    _rfc46(
        Fetch("P1", "C1", "hello", 256, 99),
        "46 5031",
        "aaa5 46 01 02 4331 05 68656c6c6f 0000000000000100 00000063",
    ),
    _rfc46(
        Ack("P1", "hello", 7, "S1"),
        "4b 5031",
        "aaa5 4b 01 02 5331 05 68656c6c6f 0000000000000007",
    ),
    _rfc46(
        Ack("P1", "hello", 7),
        "4b 5031",
        "aaa5 4b 01 00 05 68656c6c6f 0000000000000007",
    ),
    _rfc46(
        Head("hello", "P1", 7),
        "48 68656c6c6f",
        "aaa5 48 01 02 5031 05 68656c6c6f 0000000000000007",
    ),
    _rfc46(
        DirectHead("C1", "hello", "P1", 7),
        "45 4331",
        "aaa5 45 01 02 5031 05 68656c6c6f 0000000000000007",
    ),
    _rfc46(GetHeads("hello", "C1"), "47 68656c6c6f", "aaa5 47 01 02 4331"),
    _rfc46(GetHeads("", "C1"), "47", "aaa5 47 01 02 4331"),
    _rfc46(
        ConsumerHello("S1", "C1", ("hello", "b")),
        "57 5331",
        "aaa5 57 01 02 4331 00000002 00000005 68656c6c6f 00000001 62",
    ),
    _rfc46(ConsumerHello("", "C1", ()), "57", "aaa5 57 01 02 4331 00000000"),
    _rfc46(StoreHello("C1", "S1"), "4c 4331", "aaa5 4c 01 02 5331"),
    _rfc46(StoreHello("", "S1"), "4c", "aaa5 4c 01 02 5331"),
]

_RUN_OF_THREE = b"\3\0\0\0" + b"\0\0\0\0" + b"\2\0\0\0" + b"one" + b"" + b"ab"
_RECORD_RUN = RecordBatchMessage("hello", "P1", 7, 3, _RUN_OF_THREE)
_DIRECT_RUN = DirectRecordBatch("C1", "hello", "P1", 0x0102030405060708, 1, b"\1\0\0\0x")
_UNIT_RUN = RecordBatchMessage("hello", "P1", 7, 3, _RUN_OF_THREE, Transaction(258, 5, 11))
_DIRECT_UNIT_RUN = DirectRecordBatch(
    "C1", "hello", "P1", 7, 3, _RUN_OF_THREE, Transaction(NO_VERSION, 7, 0x0102030405060708)
)
_NO_UNIT = "0000000000000000 0000000000000000 0000000000000000"
_UNIT = "0000000000000102 0000000000000005 000000000000000b"
_UNIT_WITHOUT_NUMBER = "ffffffffffffffff 0000000000000007 0102030405060708"
_HEADS_QUERY = HeadsQuery("C1", 258, ("hello", "b"))
_TIMES_QUERY = TimesQuery("C1", 258, "hello", "P1", 3, 9)
_HEADS_REPLY = HeadsReply(
    "C1", 258, "S1", 1, 3, (HeadEntry("hello", "P1", 3, 9), HeadEntry("b", "P2", 0, 0))
)
_TIMES_REPLY = TimesReply(
    "C1", 258, "S1", 0, 1, (TimeEntry(3, 1_700_000_000_000_000), TimeEntry(5, 0x0102030405060708))
)
_STORE_ENDPOINTS = StoreEndpoints("C1", "S1", ("grpc://h:1", "grpc+unix:///s"))

EXTENSION_VECTORS = [
    _deployed(
        _RECORD_RUN,
        "52 68656c6c6f 00 01 02 5031 05 68656c6c6f 0000000000000007 00000003" + _NO_UNIT,
        "03000000 00000000 02000000 6f6e65 6162",
    ),
    _deployed(
        _UNIT_RUN,
        "52 68656c6c6f 00 01 02 5031 05 68656c6c6f 0000000000000007 00000003" + _UNIT,
        "03000000 00000000 02000000 6f6e65 6162",
    ),
    _deployed(
        _DIRECT_RUN,
        "50 4331 00 01 02 5031 05 68656c6c6f 0102030405060708 00000001" + _NO_UNIT,
        "01000000 78",
    ),
    _deployed(
        _DIRECT_UNIT_RUN,
        "50 4331 00 01 02 5031 05 68656c6c6f 0000000000000007 00000003" + _UNIT_WITHOUT_NUMBER,
        "03000000 00000000 02000000 6f6e65 6162",
    ),
    _deployed(
        _HEADS_QUERY,
        "51 00 01 02 4331 0000000000000102 00000002 00000005 68656c6c6f 00000001 62",
    ),
    _deployed(HeadsQuery("C1", 0, ()), "51 00 01 02 4331 0000000000000000 00000000"),
    _deployed(
        _TIMES_QUERY,
        "54 00 01 02 4331 0000000000000102 05 68656c6c6f 02 5031 0000000000000003 0000000000000009",
    ),
    _deployed(
        _HEADS_REPLY,
        "53 4331 00 01 0000000000000102 02 5331 00000001 00000003 00000002"
        " 05 68656c6c6f 02 5031 0000000000000003 0000000000000009"
        " 01 62 02 5032 0000000000000000 0000000000000000",
    ),
    _deployed(
        HeadsReply("C1", 258, "S1", 0, 1, ()),
        "53 4331 00 01 0000000000000102 02 5331 00000000 00000001 00000000",
    ),
    _deployed(
        _TIMES_REPLY,
        "55 4331 00 01 0000000000000102 02 5331 00000000 00000001 00000002"
        " 0000000000000003 00060a24181e4000 0000000000000005 0102030405060708",
    ),
    _deployed(
        _STORE_ENDPOINTS,
        "4e 4331 00 01 02 5331 00000002"
        " 0000000a 677270633a2f2f683a31 0000000e 677270632b756e69783a2f2f2f73",
    ),
    _rfc46(
        _STORE_ENDPOINTS,
        "4e 4331",
        "aaa5 4e 01 02 5331 00000002"
        " 0000000a 677270633a2f2f683a31 0000000e 677270632b756e69783a2f2f2f73",
    ),
    _rfc46(
        _RECORD_RUN,
        "52 68656c6c6f",
        "aaa5 52 01 02 5031 05 68656c6c6f 0000000000000007 00000003" + _NO_UNIT,
        "03000000 00000000 02000000 6f6e65 6162",
    ),
    _rfc46(
        _UNIT_RUN,
        "52 68656c6c6f",
        "aaa5 52 01 02 5031 05 68656c6c6f 0000000000000007 00000003" + _UNIT,
        "03000000 00000000 02000000 6f6e65 6162",
    ),
    _rfc46(
        _DIRECT_RUN,
        "50 4331",
        "aaa5 50 01 02 5031 05 68656c6c6f 0102030405060708 00000001" + _NO_UNIT,
        "01000000 78",
    ),
    _rfc46(
        _DIRECT_UNIT_RUN,
        "50 4331",
        "aaa5 50 01 02 5031 05 68656c6c6f 0000000000000007 00000003" + _UNIT_WITHOUT_NUMBER,
        "03000000 00000000 02000000 6f6e65 6162",
    ),
    _rfc46(
        _HEADS_QUERY,
        "51",
        "aaa5 51 01 02 4331 0000000000000102 00000002 00000005 68656c6c6f 00000001 62",
    ),
    _rfc46(
        _TIMES_QUERY,
        "54",
        "aaa5 54 01 02 4331 0000000000000102 05 68656c6c6f 02 5031"
        " 0000000000000003 0000000000000009",
    ),
    _rfc46(
        _HEADS_REPLY,
        "53 4331",
        "aaa5 53 01 0000000000000102 02 5331 00000001 00000003 00000002"
        " 05 68656c6c6f 02 5031 0000000000000003 0000000000000009"
        " 01 62 02 5032 0000000000000000 0000000000000000",
    ),
    _rfc46(
        _TIMES_REPLY,
        "55 4331",
        "aaa5 55 01 0000000000000102 02 5331 00000000 00000001 00000002"
        " 0000000000000003 00060a24181e4000 0000000000000005 0102030405060708",
    ),
]

VECTORS = [*RECORDED_VECTORS, *RFC46_VECTORS, *EXTENSION_VECTORS]
