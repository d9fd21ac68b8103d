"""Tables of invalid requests, with their errors."""

from collections.abc import Iterator, Sequence
from typing import Any

from dafka_core.flight.limits import MAX_BATCH_BYTES

RANGE: list[object] = ["t", "P", 0, 5, None, None]
GET: dict[str, Any] = {"v": 1, "ranges": [RANGE]}
PUT: dict[str, Any] = {"v": 1, "topic": "t", "partition": "P", "start": 5}
NAMES_WRONG: tuple[object, ...] = ("", "x" * 256, "é" * 128, "a\0b", "\ud800", 7, None, [], {})
OFFSETS_WRONG: tuple[object, ...] = (-1, 2**63, 10**30, 1.5, "1", True, None, [])


def variants(good: dict[str, Any], **wrong: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests that are valid except for one member."""
    for name, values in wrong.items():
        for value in values:
            yield name, good | {name: value}
    for name in ("v", "ranges", "topic", "partition", "start", "end"):
        if name in good:
            yield name, {key: value for key, value in good.items() if key != name}
    yield "colums", good | {"colums": ["value"]}
    yield "v", good | {"v": 5}
    yield "v", good | {"v": "1"}
    yield "v", good | {"v": True}
    yield "v", good | {"v": [1]}


ATTEMPT = "3F2504E04F8911D39A0C0305E82C3301"
ATTEMPTS_WRONG: tuple[object, ...] = (
    "",
    "A" * 31,
    "A" * 33,
    "a" * 32,
    "G" * 32,
    "0" * 32,
    "\uff11" * 32,
    7,
    None,
    ["A" * 32],
)
CURSORS_WRONG: tuple[object, ...] = (1, None, [], {}, "x" * 101)
VERSIONS_WRONG: tuple[object, ...] = (-2, 2**63 - 1, 1.0, "1", True, None, [])
TRANSACTIONS_WRONG: tuple[object, ...] = (
    7,
    [],
    [1, 2],
    [1, 0, 5, 6],
    [-1, 0, 5],
    [1, 5, 5],
    [1, 6, 5],
    [1, 0, 6],
    [1, -1, 5],
    [True, 0, 5],
    [1, 0, "5"],
    {"version": 1},
)
PUTS = [
    *variants(PUT, topic=NAMES_WRONG, partition=NAMES_WRONG, start=OFFSETS_WRONG, store=(1, None)),
    *variants(PUT | {"attempt": ATTEMPT}, attempt=ATTEMPTS_WRONG, version=VERSIONS_WRONG),
    ("version", PUT | {"version": 1}),
    *variants(PUT, waited_s=(-1, 3_601, "1", True, None, [], float("inf"))),
]
LINK: list[object] = ["t", "P", 0, 5, "0" * 16, "a" * 64, "b" * 64]
HEX_WRONG: tuple[object, ...] = ("", "A" * 64, "a" * 63, 7, None, "a" * 64 + "\n")
LINK_WRONG = (NAMES_WRONG, NAMES_WRONG, OFFSETS_WRONG, OFFSETS_WRONG, *[HEX_WRONG] * 3)
COMMIT: list[object] = ["t", "P", ATTEMPT, 0, 5, 1]


def rows_wrong(row: list[object], *wrong: Sequence[object]) -> Iterator[list[object]]:
    """Lists of one row with an error; ``wrong`` has the possible errors at each position."""
    for index, values in enumerate(wrong):
        for value in values:
            yield [[*row[:index], value, *row[index + 1 :]]]
    yield [row[:-1]]
    yield [[*row, 0]]
    yield [{"topic": "t"}]
    yield ["row"]


LIFE_WRONG: tuple[object, ...] = ([1, 2], [1, 2, -1], [1, 2, 3, 4], 7, "x", {})
RANGES_WRONG: list[object] = [
    *([[*RANGE[:at], name, *RANGE[at + 1 :]]] for at in (0, 1) for name in NAMES_WRONG),
    *([[*RANGE[:at], offset, *RANGE[at + 1 :]]] for at in (2, 3) for offset in OFFSETS_WRONG),
    *([[*RANGE[:at], life, *RANGE[at + 1 :]]] for at in (4, 5) for life in LIFE_WRONG),
    *([[]], ["range"], [RANGE[:3]], [[*RANGE, 0]], [{"topic": "t"}], [["t", "P", 5, 4]]),
    *([RANGE] * 1_001, 7, None, "t"),
]
GETS = [
    *variants(
        GET,
        ranges=([], *RANGES_WRONG),
        columns=("value", [], ["valu"], ["value", "value"], [1], None, {"value": 1}, [None]),
        times=(1, "true", None),
        partial=(1, "true", None),
        where=("", "offset", "offset > 'x'", "x" * 4_097, "(" * 4_000, "NOT " * 1_000, 5, []),
        envelope=("", "some", 1, None),
        max_records=(0, -1, 65_537, 1.0, "1", None, False),
        max_bytes=(0, MAX_BATCH_BYTES + 1, 2**70, None),
        store=(1, None, []),
    ),
    *variants({"v": 2}, known=(7, None, [7], [[1, 2]], [[-1, 2, "x"]], [[1, 2, "x" * 17]])),
]

NOT_OBJECTS = [
    b"",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b"{",
    b"\xff\xfe",
    b"[" * 5_000,
    b'{"v": ' * 1_000,
    b"\0" * 100,
    b'{"v": 1' + b"1" * 5_000 + b"}",
    b"NaN",
]

BODIES: dict[str, list[dict[str, Any]]] = {
    "dafka.heads.v1": [{"topics": "t"}, {"topics": [""]}, {"topics": [1]}, {"topic": "t"}],
    "dafka.offsets.v1": [
        {},
        {"times": 1},
        {"times": [["t", "P"]]},
        {"times": [["t", "P", 1.5]]},
        {"times": [["t", "P", 2**63]]},
        {"times": [["t", "P", 0]] * 1_001},
    ],
    "dafka.sizes.v1": [{}, {"ranges": []}, *({"ranges": ranges} for ranges in RANGES_WRONG)],
    "dafka.staged.v1": [{"topic": "t"}, {"staged": []}],
    "dafka.wait.v1": [
        {"topic": "t", "partition": "P", "end": 5},
        *(
            {"topic": "t", "partition": "P", "end": 5, "timeout_s": seconds}
            for seconds in (-1, 3_601, "1", None, True, float("nan"), float("inf"))
        ),
        {"topic": "t", "partition": "P", "end": -1, "timeout_s": 1},
        *(
            {"topic": "t", "partition": "P", "end": 5, "timeout_s": 1, "transaction": transaction}
            for transaction in TRANSACTIONS_WRONG
        ),
    ],
    "dafka.watch.v1": [
        {},
        *({"timeout_s": seconds} for seconds in (-1, 3_601, "1", None, True, float("nan"))),
        *({"timeout_s": 0, "topics": names} for names in ("t", [""], [1], ["t"] * 10_001)),
        *({"timeout_s": 0, "cursor": cursor} for cursor in CURSORS_WRONG),
        {"timeout_s": 0, "topic": "t"},
    ],
    "dafka.transactions.v1": [
        {},
        {"partitions": {}},
        {"partitions": [["t", "P"]] * 10_001},
        *({"partitions": rows} for rows in rows_wrong(["t", "P"], NAMES_WRONG, NAMES_WRONG)),
    ],
    "dafka.commit.v1": [
        {},
        {"transactions": "x"},
        {"transactions": [[*COMMIT[:1], f"P{n}", *COMMIT[2:]] for n in range(10_001)]},
        {"transactions": [COMMIT, COMMIT]},
        {"transactions": [["t", "P", ATTEMPT, 5, 5, 1]]},
        *(
            {"transactions": rows}
            for rows in rows_wrong(
                COMMIT,
                NAMES_WRONG,
                NAMES_WRONG,
                ATTEMPTS_WRONG,
                OFFSETS_WRONG,
                OFFSETS_WRONG,
                VERSIONS_WRONG,
            )
        ),
    ],
    "dafka.digests.v1": [
        {},
        {"ranges": 1},
        {"ranges": [["t", "P", "", 5, 1]]},
        {"ranges": [["t", "P", "", 0, 1]] * 10_001},
        *(
            {"ranges": rows}
            for rows in rows_wrong(
                ["t", "P", ATTEMPT, 0, 5],
                NAMES_WRONG,
                NAMES_WRONG,
                ATTEMPTS_WRONG[1:],  # an empty one means visible rows
                OFFSETS_WRONG,
                OFFSETS_WRONG,
            )
        ),
    ],
    "dafka.discard.v1": [
        {},
        {"stages": None},
        {"stages": [["t", "P", ATTEMPT]] * 10_001},
        *(
            {"stages": rows}
            for rows in rows_wrong(["t", "P", ATTEMPT], NAMES_WRONG, NAMES_WRONG, ATTEMPTS_WRONG)
        ),
    ],
    "dafka.lease.v1": [
        *({"ranges": ranges} for ranges in RANGES_WRONG),
        *({"ranges": [RANGE], "done": lease} for lease in ("a" * 31, "A" * 32, "g" * 32, 7, None)),
        {"ranges": [RANGE], "partial": 1},
    ],
    "dafka.retention.v1": [{"rules": 1}, {"rules": ["t"]}, {"rules": ["t=7"]}, {"reset": 1}],
    "dafka.trim.v1": [
        {},
        {"trims": 1},
        {"trims": [["t", "A" * 32]]},
        {"trims": [["t", "A" * 32, -1]]},
        *({"trims": [[name, "A" * 32, 1]]} for name in NAMES_WRONG),
    ],
    "dafka.delete.v1": [
        {},
        {"topic": 1},
        *({"topic": name} for name in (*NAMES_WRONG, "__dafka.queries")),
    ],
    "dafka.forget.v1": [{}, {"address": 1}, *({"address": name} for name in NAMES_WRONG)],
    "dafka.space.v1": [{"x": 1}, {"store": 1}],
    "dafka.stores.v1": [{"x": 1}, {"store": 1}],
    "dafka.describe.v1": [{"x": 1}],
    "dafka.peers.v1": [{"x": 1}, {"peers": []}],
    "dafka.check.v1": [
        {"partitions": 7},
        {"partitions": [["t", "P"]] * 10_001},
        *({"partitions": rows} for rows in rows_wrong(["t", "P"], NAMES_WRONG, NAMES_WRONG)),
        *({"saved": rows} for rows in rows_wrong(LINK, *LINK_WRONG)),
        {"saved": [LINK] * 1_001},
    ],
    "dafka.links.v1": [
        {},
        {"partitions": [["t", "P"]], "newest": 1},
        {"partitions": [["t", "P"]] * 1_001},
        *({"partitions": rows} for rows in rows_wrong(["t", "P"], NAMES_WRONG, NAMES_WRONG)),
    ],
}
