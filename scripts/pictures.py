"""Draw the pictures of lines and boxes in docs/images: ``python scripts/pictures.py``.

``--check`` only compares, and fails if one is out of date. Their colours follow the reader's light
or dark theme.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from dafka_core.protocol import timing
from scripts.generated import write

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
LETTER_WIDTH = 7.3
STYLE = """\
svg{--ink:#22303c;--soft:#5c6c79;--paper:#fcfdfd;--edge:#d5dee2;--box:#e6f1f0;--line:#00796b;\
--hot:#c2410c;--hotbox:#fdebe0}
@media(prefers-color-scheme:dark){svg{--ink:#e8eef2;--soft:#a3b3bf;--paper:#1d2228;--edge:#3a444d;\
--box:#1f3a3a;--line:#4db6ac;--hot:#ffa26b;--hotbox:#4a2c1d}}
text{font:14px system-ui,sans-serif;fill:var(--ink)}
.s{font-size:12px;fill:var(--soft)}.b{font-weight:600}.h{fill:var(--hot)}.m{text-anchor:middle}
.card{fill:var(--paper);stroke:var(--edge)}
.box{fill:var(--box);stroke:var(--line)}.hot{fill:var(--hotbox);stroke:var(--hot)}
.none{fill:none;stroke:var(--soft);stroke-dasharray:4 4}
.a{fill:none;stroke:var(--line);stroke-width:1.6;marker-end:url(#a)}
.w{stroke:var(--hot);marker-end:url(#w)}.l{fill:none;stroke:var(--edge);stroke-dasharray:3 4}
"""
MARKERS = "".join(
    f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    f' orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" style="fill:var(--{colour})"/></marker>'
    for name, colour in (("a", "line"), ("w", "hot"))
)


class Picture:
    """Boxes, arrows and words on a card."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size, self._title = (width, height), title
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "box"
    ) -> None:
        """Draw a box; its first line is its name."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
            ' rx="6"/>'
        )
        top = y + height / 2 + 5 - 8.5 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 17 * number, line, "m s" if number else "m b")

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        """Write words that begin at a point, or (kind ``m``) are centred on it."""
        said = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}"{said}>{escape(words)}</text>')

    def line(self, *points: tuple[float, float], kind: str = "a", both: bool = False) -> None:
        """Draw an arrow along some points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        start = ' marker-start="url(#a)"' if both else ""
        self._parts.append(f'<polyline class="{kind}" points="{path}"{start}/>')

    def drawn(self) -> str:
        """Return the SVG file's text."""
        width, height = self._size
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img" aria-label="{escape(self._title)}">\n'
            f"<style>{STYLE}</style><defs>{MARKERS}</defs>\n"
            f'<rect class="card" x=".5" y=".5" rx="10" width="{width - 1}" height="{height - 1}"/>'
            "\n" + "\n".join(self._parts) + "\n</svg>\n"
        )


def partitions() -> str:
    """Draw partitions as producers."""
    picture = Picture(760, 292, "A topic with three producers, which are its three partitions")
    picture.text(24, 32, "topic weather", "b")
    picture.text(24, 50, "one partition for each producer", "s")
    for row, (producer, count) in enumerate((("A", 7), ("B", 4), ("C", 5))):
        y = 74 + 62 * row
        is_new = producer == "C"
        picture.box(24, y, 116, 40, f"producer {producer}", kind="hot" if is_new else "box")
        picture.line((140, y + 20), (200, y + 20), kind="a w" if is_new else "a")
        for offset in range(count):
            kind = "hot" if is_new else "box"
            picture.box(206 + 38 * offset, y + 3, 34, 34, str(offset), kind=kind)
        picture.box(206 + 38 * count, y + 3, 34, 34, kind="none")
    picture.text(206, 276, "offset 0, 1, 2, … in each, without holes", "s")
    picture.text(24, 276, "began today", "s h")
    told = ("has each row in order;", "there is no order", "between the rows")
    picture.box(560, 74, 176, 164, "reader", *told)
    for row, end in enumerate((510, 396, 434)):
        picture.line((end, 94 + 62 * row), (556, 94 + 62 * row))
    return picture.drawn()


class Step(NamedTuple):
    """A message between actors; a message to itself is an internal step."""

    start: int
    end: int
    words: str
    is_fault: bool = False


def sequence(title: str, actors: Sequence[str], steps: Iterable[Step], across: int = 190) -> str:
    """Draw the exchanges of a few nodes, one below the other."""
    steps = list(steps)
    width, height = across * len(actors) + 40, 96 + 40 * len(steps)
    picture = Picture(width, height, title)
    middles = [20 + across / 2 + across * number for number in range(len(actors))]
    for middle, actor in zip(middles, actors, strict=True):
        picture.line((middle, 60), (middle, height - 16), kind="l")
        picture.box(middle - across / 2 + 12, 18, across - 24, 42, *actor.split("\n"))
    for number, step in enumerate(steps):
        y = 104 + 40 * number
        start, end = middles[step.start], middles[step.end]
        fault = " w" if step.is_fault else ""
        if start == end:
            size = len(step.words) * LETTER_WIDTH + 20
            kind = "hot" if step.is_fault else "card"
            picture.box(start - size / 2, y - 18, size, 28, kind=kind)
            picture.text(start, y + 1, step.words, "m")
        else:
            inwards = 4 if start < end else -4
            picture.line((start + inwards, y), (end - inwards, y), kind=f"a{fault}")
            picture.text((start + end) / 2, y - 7, step.words, "m h" if step.is_fault else "m")
    return picture.drawn()


def exactly_once() -> str:
    """Draw how a row comes into a topic once, though its batch runs twice."""
    task, store, checkpoint = range(3)
    return sequence(
        "A micro-batch that runs twice and is written once",
        ("task of batch 7", "store", "checkpoint"),
        (
            Step(checkpoint, task, "batch 7 reads offsets 100 to 200"),
            Step(task, store, "stage these rows"),
            Step(store, store, "on disk, not yet visible"),
            Step(task, store, "commit, version 7"),
            Step(store, store, "rows and “7” appear together"),
            Step(task, task, "killed, before Spark notes it", is_fault=True),
            Step(checkpoint, task, "batch 7 again: the same offsets"),
            Step(task, store, "which version was last?"),
            Step(store, task, "7, with these rows"),
            Step(task, task, "writes nothing twice"),
            Step(task, checkpoint, "batch 7 is done"),
        ),
        across=270,
    )


def to_disk() -> str:
    """Draw a record on its way to disk."""
    app, producer, mesh, store, log = range(5)
    return sequence(
        "A record on its way to disk",
        ("application", "Producer", "Mesh\nProducerRole", "Mesh\nStoreRole", "LogWriter\nLog"),
        (
            Step(app, producer, "publish(value)"),
            Step(producer, mesh, "RecordBatch"),
            Step(mesh, mesh, "kept until acks stores have it"),
            Step(mesh, store, "RECORD frames"),
            Step(store, log, "entries, as a group"),
            Step(log, log, "blocks, fsync"),
            Step(log, store, "outcomes"),
            Step(store, mesh, "ACK"),
            Step(mesh, producer, "acknowledged"),
        ),
    )


def times() -> str:
    """Draw the three times of a record."""
    picture = Picture(760, 206, "When something happened, was published and is processed")
    picture.line((24, 118), (736, 118))
    for x, name, whose, words, kind in (
        (30, "it happens", "a field of the value", "windows, watermarks", "box"),
        (275, "it is published", "column timestamp", "--since, startingTimestamp", "hot"),
        (520, "it is processed", "current_timestamp()", "different each time", "none"),
    ):
        picture.box(x, 26, 200, 62, name, whose, kind=kind)
        picture.line((x + 100, 88), (x + 100, 116), kind="a w" if kind == "hot" else "a")
        picture.text(x + 100, 142, words, "m s")
    picture.text(375, 176, "given once, the same at every store", "m h")
    picture.text(722, 138, "time", "m s")
    return picture.drawn()


def machines() -> str:
    """Draw the connections between nodes."""
    picture = Picture(760, 344, "Connections between nodes, and their ports")
    picture.box(300, 24, 160, 48, "towers", "5556, 5557")
    picture.box(24, 150, 170, 56, "producers", "and consumers")
    picture.box(300, 150, 160, 56, "stores", "port, flight_port")
    picture.box(566, 150, 170, 56, "other stores")
    picture.box(150, 264, 170, 56, "Spark's driver")
    picture.box(440, 264, 170, 56, "Spark's executors")
    picture.line((110, 150), (296, 56))
    picture.line((380, 150), (380, 76))
    picture.line((250, 264), (250, 112), (312, 76))
    picture.line((198, 178), (296, 178), both=True)
    picture.line((464, 178), (562, 178), both=True)
    picture.line((280, 260), (345, 210), both=True)
    picture.line((310, 262), (370, 210))
    picture.line((525, 264), (420, 210))
    picture.line((324, 292), (436, 292), both=True)
    for x, y, words in (
        (222, 170, "port"),
        (513, 170, "port"),
        (516, 238, "flight_port"),
        (404, 254, "port, flight_port"),
        (380, 310, "Spark's own ports"),
    ):
        picture.text(x, y, words, "m s")
    return picture.drawn()


def rooms() -> str:
    """Draw the layers of dafka_core that ``make lint`` checks, and the packages above."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in contracts if each.get("containers") == ["dafka_core"]]
    split = [[name.strip() for name in layer.split("|")] for layer in layers]
    is_room = {name: (ROOT / "dafka_core" / name).is_dir() for layer in split for name in layer}
    last = max(number for number, layer in enumerate(split) if any(map(is_room.get, layer)))
    plain = [name for layer in split[last + 1 :] for name in layer]
    below = wrap(", ".join(plain), 100, break_on_hyphens=False)
    width, row = 760, 44
    end = 92 + row * (last + 1)
    picture = Picture(width, end + 54 + 17 * len(below), "Rooms of the code, in layers")
    picture.box(24, 20, width - 48, 36, "jobs, notebooks, benchmarks, dafka_spark", kind="hot")
    picture.text(24, 80, "dafka_core: each layer may import what is below it", "s")
    for number, layer in enumerate(split[: last + 1]):
        x, size = 24.0, (width - 48 - 8 * (len(layer) - 1)) / len(layer)
        for name in layer:
            if is_room[name]:
                picture.box(x, 92 + row * number, size, 36, name)
            else:
                picture.box(x, 92 + row * number, size, 36, kind="none")
                picture.text(x + size / 2, 115 + row * number, name, "m s")
            x += size + 8
    picture.box(24, end, width - 48, 30 + 17 * len(below), "imported by all of them", *below)
    return picture.drawn()


def discovery() -> str:
    """Draw the times of discovery, with the constants of ``protocol/timing.py``."""
    picture = Picture(760, 190, "The time until a requestor knows all stores")
    picture.line((24, 82), (736, 82))
    limits = (
        (150, f"{timing.INTRODUCTION_S:g} s", ("C nodes without", "a hello: no stores")),
        (290, f"{timing.SETTLE_S:g} s", ("complete, if all", "have answered")),
        (640, f"{timing.STORE_TIMEOUT_S:g} s", ("silent nodes are", "given up by name")),
    )
    picture.text(24, 40, "beacons, connections, kinds,", "s")
    picture.text(24, 58, "subscriptions, greetings, lists of stores", "s")
    for x, time, words in limits:
        picture.line((x, 74), (x, 90), kind="l")
        picture.text(x, 110, time, "m b")
        for row, line in enumerate(words):
            picture.text(x, 130 + 17 * row, line, "m s")
    picture.text(380, 178, "a sign of life of a silent node extends its time", "m s")
    return picture.drawn()


PICTURES = {
    "discovery": discovery,
    "exactly_once": exactly_once,
    "machines": machines,
    "partitions": partitions,
    "rooms": rooms,
    "times": times,
    "to_disk": to_disk,
}


def main() -> None:
    """Draw them, or report that one is out of date."""
    for name, draw in PICTURES.items():
        write(IMAGES / f"{name}.svg", draw())


if __name__ == "__main__":
    main()
