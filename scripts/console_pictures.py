"""Draws the console's pictures for docs/images, in a real Chromium, and looks at its pages there.

``python -m scripts.console_pictures`` starts a cluster with something going on in it, opens the
pages in a headless Chromium (of Debian's package ``chromium``, or ``--browser``), checks what they
have made of the cluster, and leaves ``docs/images/console_{light,dark,phone}.png`` and further ones
in ``--all DIR``.  ``--url`` looks at a console that runs already.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer as KafkaConsumer
from PIL import Image

from dafka_console.server import Console
from dafka_core import Consumer, EmbeddedCluster, Producer
from dafka_core.audit import (
    AuditedRange,
    AuditRecord,
    chained,
    partition_of,
)
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.queries.query_progress import QueryProgress, publish
from dafka_core.security.web_access import write_token
from dafka_core.storage import Log
from dafka_core.testing import StoreDouble
from scripts.browser import PATIENCE_S, Browser

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
HOSTILE = (
    b"<img src=x onerror=\"document.title='broken into'\">"
    b"<script>document.title='broken into'</script>"
)


def drawn() -> bytes:
    """Return a PNG with a gradient."""
    file = io.BytesIO()
    Image.linear_gradient("L").save(file, "PNG")
    return file.getvalue()


@contextmanager
def busy_cluster() -> Iterator[EmbeddedCluster]:
    """A cluster in which flights are written and read, and queries are behind."""
    with ExitStack() as stack:
        cluster = stack.enter_context(EmbeddedCluster(stores=3, kafka=True))
        ended = threading.Event()

        def begin(work: Callable[..., None], *arguments: object) -> None:
            thread = threading.Thread(target=work, args=(*arguments, ended))
            thread.start()
            stack.callback(thread.join)
            stack.callback(ended.set)

        rates = {"flights": 900, "weather": 220, "payments": 140, "clicks": 60, "audit-log": 0}
        producers = []
        for topic, rate in rates.items():
            for _ in range(2 if topic == "flights" else 1):
                producer = stack.enter_context(Producer(topic, tower=cluster.tower))
                producers.append(producer)
                producer.publish_many(
                    [_flight(number) for number in range(4_000)], keys=[b"UA"] * 4_000
                )
                begin(_write, producer, rate)
        with Producer("examples", tower=cluster.tower) as examples:
            for value in (HOSTILE, _flight(7), drawn(), bytes(range(64)), None):
                examples.publish(value, b"<b>key</b>", [("trace", b"4bf92f")])
            examples.flush(PATIENCE_S)
        for topics in (("flights", "weather"), ("payments",)):
            consumer = stack.enter_context(Consumer(tower=cluster.tower))
            for topic in topics:
                consumer.subscribe(topic)
            begin(_read, consumer)
        begin(_report, cluster, producers[0])
        for group in ("billing", "billing", "search-index"):
            begin(_join, cluster, group)
        yield cluster


def _join(cluster: EmbeddedCluster, group: str, ended: threading.Event) -> None:
    """A member of a consumer group; that of the search's index goes after a while."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group}
    often = {"auto.commit.interval.ms": 1_000, "auto.offset.reset": "earliest"}
    consumer = KafkaConsumer({**settings, **often, "client.id": f"{group}-app"})
    consumer.subscribe(["flights", "payments"] if group == "billing" else ["weather"])
    left = 2_000 if group == "search-index" else sys.maxsize
    while left > 0 and not ended.is_set():
        left -= len(consumer.consume(500, 0.2))
    consumer.close()


def _flight(number: int) -> bytes:
    carriers = ("UA", "AA", "DL", "B6", "WN")
    return json.dumps(
        {
            "flight": f"{carriers[number % 5]}{100 + number % 900}",
            "origin": ("EWR", "JFK", "LGA")[number % 3],
            "dest": ("SFO", "ORD", "MIA", "BOS")[number % 4],
            "dep_delay": (number * 7) % 91 - 10,
        }
    ).encode()


def _write(producer: Producer, rate: int, ended: threading.Event) -> None:
    for tick in itertools.count():
        if ended.wait(0.1):
            return
        swing = 1 + 0.5 * ((tick // 7) % 5 - 2) / 2
        if rate:
            producer.publish_many([_flight(tick + n) for n in range(int(rate * swing / 10) + 1)])


def _read(consumer: Consumer, ended: threading.Event) -> None:
    while not ended.is_set():
        consumer.poll(0.2)


def _report(cluster: EmbeddedCluster, producer: Producer, ended: threading.Event) -> None:
    """Two queries, one of which falls behind and catches up."""
    with ExitStack() as stack:
        locations = [StoreLocation("", cluster.locations(index)) for index in range(3)]
        clients = [stack.enter_context(StoreClient(each)) for each in locations]
        tp = TopicPartition(producer.topic, producer.address)
        _note_batches(clients[0], tp)
        for tick in itertools.count():
            for name, behind in (("hourly-delays", (tick % 9) * 250), ("alerts", 40)):
                at = max(0, producer.acknowledged - behind)
                progress = QueryProgress(name, f"{name}-run", 1.0, ()).at({tp: at})
                publish(clients, "__dafka.queries", progress, timeout_s=PATIENCE_S)
            if ended.wait(1.0):
                return


def _note_batches(client: StoreClient, tp: TopicPartition) -> None:
    """The audit trail of a query that has written 12 batches."""
    previous, values = b"", []
    for batch in range(12):
        part = AuditedRange(*tp, batch * 300, (batch + 1) * 300, f"300:{batch:064X}")
        record = AuditRecord("7090e364-demo", batch, 300, (part,), "5e88", chained(previous))
        previous = record.packed()
        values.append(previous)
    with client.put(partition_of("7090e364-demo"), 0, timeout_s=PATIENCE_S) as put:
        put.write(pa.array(values, pa.binary()))
        put.finish(PATIENCE_S)


def look_at(browser: Browser, url: str, folder: Path) -> None:
    """Open the pages, check what they show of the cluster, and draw them."""
    check = Checks(browser, url)
    browser.size(1280, 800)
    check.open("", "document.querySelectorAll('.map .node.store').length >= 3")
    check.sees("document.querySelectorAll('.map .link.busy').length > 0", "somebody writes")
    check.sees("document.querySelectorAll('.map .link.bad').length === 0", "all are connected")
    time.sleep(12)  # so that the lines have a shape
    browser.picture(folder / "console_light.png")
    browser.size(1280, 800, dark=True)
    check.open("", "document.querySelectorAll('.map .node.store').length >= 3")
    browser.picture(folder / "console_dark.png")
    browser.size(390, 844, 2.0)
    check.open("", "document.querySelectorAll('.map .node.store').length >= 3")
    check.sees("document.documentElement.scrollWidth === 390", "nothing is cut off")
    browser.picture(folder / "console_phone.png")


def look_further(browser: Browser, url: str, folder: Path) -> None:
    """The other pages, which have no picture in the documentation."""
    check = Checks(browser, url)
    rows = "document.querySelectorAll('.list-row').length"
    for name, width, height, dark in (("wide", 1280, 800, False), ("phone", 390, 844, True)):
        browser.size(width, height, dark=dark)
        check.open("topics", f"{rows} >= 6")
        check.sees(f"document.documentElement.scrollWidth === {width}", "nothing is cut off")
        browser.picture(folder / f"topics_{name}.png")
        check.open("topic/flights", f"{rows} >= 2")
        check.sees("document.querySelectorAll('.record').length >= 10", "the last records")
        browser.picture(folder / f"topic_{name}.png")
        check.open("topic/examples", f"{rows} >= 1")
        browser.run("document.querySelector('.list-row').click()")
        check.sees("document.querySelectorAll('.record').length === 5", "five records")
        first = "[...document.querySelectorAll('.record')].at(-1)"  # the newest is at the top
        text = browser.run(f"{first}.querySelector('.value').textContent")
        assert text.startswith("<img src=x"), text
        browser.run(f"{first}.click()")
        check.sees("document.querySelector('.detail .text')", "a record is opened")
        browser.picture(folder / f"records_{name}.png")
        assert not browser.run("document.querySelectorAll('main script').length")
        assert "broken" not in browser.run("document.title"), "a record's value was run"
        browser.run("document.querySelectorAll('.record')[2].click()")
        check.sees("document.querySelector('.picture')?.naturalWidth > 0", "a picture is drawn")
        check.open("queries", "document.querySelectorAll('.query').length === 2")
        browser.picture(folder / f"queries_{name}.png")
        check.sees("document.querySelector('details.card')", "an audit trail")
        browser.run("document.querySelector('details.card').open = true")
        check.sees("document.querySelectorAll('details.card .badge.good').length === 11", "a chain")
        browser.run("document.querySelector('details.card').scrollIntoView()")
        browser.picture(folder / f"audit_{name}.png")
        check.open("groups", f"{rows} === 2")
        browser.run("document.querySelector('.list-row').click()")
        check.sees("document.querySelectorAll('tbody tr').length >= 1", "a group's partitions")
        check.open("groups/billing", "document.querySelectorAll('tbody code').length === 3")
        check.sees(f"document.documentElement.scrollWidth === {width}", "nothing is cut off")
        browser.picture(folder / f"groups_{name}.png")
        check.open("produce", "document.querySelector('form')")
        browser.picture(folder / f"produce_{name}.png")
        check.open("health", "document.querySelectorAll('.finding').length > 2")
        browser.picture(folder / f"health_{name}.png")
    check.keys()


def look_at_many(browser: Browser, folder: Path) -> None:
    """A topic of 10,000 partitions among 1,000 topics: what can be seen is made, and no more."""
    with tempfile.TemporaryDirectory(prefix="dafka-many-") as directory:
        with Log(Path(directory) / "store-0") as log:
            names = [("wide", n) for n in range(10_000)]
            names += [(f"topic-{n:04d}", n) for n in range(999)]
            for start in range(0, len(names), 1_000):
                part = names[start : start + 1_000]
                tps = [TopicPartition(topic, f"{n:032X}") for topic, n in part]
                log.append([RecordBatch.of(tp, 0, [b"x"] * 3) for tp in tps])
        with (
            EmbeddedCluster(1, directory) as cluster,
            Console({"tower": cluster.tower}, listen="127.0.0.1:0") as console,
        ):
            check = Checks(browser, console.url)
            browser.size(1280, 800)
            for page, total in (("topics", 1_000), ("topic/wide", 10_000)):
                check.open(page, f"document.querySelector('.list')?.dataset.total === '{total}'")
                check.sees("document.querySelectorAll('.list-row').length < 100", "few rows")
                browser.run("document.querySelector('.list-scroll').scrollTop = 1e9")
                last = f"document.querySelector('[data-row=\"{total - 1}\"]')"
                check.sees(f"{last}?.getBoundingClientRect().bottom <= innerHeight + 600", page)
                browser.picture(folder / f"many_{page.replace('/', '_')}.png")


def look_at_login(browser: Browser, folder: Path) -> None:
    """A console asks for a token by a form, by a link, and after a change."""
    with tempfile.TemporaryDirectory(prefix="dafka-login-") as directory:
        file = Path(directory) / "token"
        write_token(file)
        with (
            StoreDouble(Path(directory) / "store") as store,
            Console({}, [store.location], listen="127.0.0.1:0", token_file=str(file)) as console,
        ):
            check = Checks(browser, console.url)
            browser.size(1280, 800)
            form, inside = "document.querySelector('#token')", "document.querySelector('.map')"
            check.open("", form)
            browser.picture(folder / "login.png")
            for token, seen in (
                ("wrong", "document.querySelector('[role=alert]')?.textContent"),
                (file.read_text().strip(), inside),
            ):
                browser.run(f"{form}.value = '{token}'; {form}.form.requestSubmit()")
                check.sees(seen, "a form is answered")
            check.sees("document.cookie === ''", "no script sees the cookie")
            file.unlink()
            write_token(file)
            browser.run("location.hash = '#/topics'")
            check.sees(form, "another token ends the session")
            link = f"{console.url}?token={file.read_text().strip()}"
            browser.call("Page.navigate", url=link)
            check.sees(f"{inside} && !location.search", "a link lets in, and is left")
    browser.errors = [each for each in browser.errors if "401 (Unauthorized)" not in each]


class Checks:
    """Selectors that pages must contain."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        self._url = url

    def open(self, path: str, ready: str) -> None:
        """Open a page, and wait until it is ready."""
        self._browser.call("Page.navigate", url="about:blank")
        self._browser.call("Page.navigate", url=f"{self._url}#/{path}")
        self.sees(f"document.readyState === 'complete' && {ready}", f"page {path!r}")

    def sees(self, script: str, what: str) -> None:
        """Wait until a script is true in the page."""
        self._browser.wait(f"!!({script})", what)

    def keys(self) -> None:
        """Use the keyboard only: find a topic, write a record."""
        browser = self._browser
        browser.size(1280, 800)
        self.open("", "document.querySelector('.map')")
        browser.key("t", "t")
        self.sees("document.querySelectorAll('.list-row').length > 3", "t shows topics")
        browser.key("/", "/")
        self.sees("document.activeElement.type === 'search'", "/ finds")
        browser.call("Input.insertText", text="flig")
        self.sees("document.querySelector('.list').dataset.total === '1'", "one is found")
        browser.key("Escape")
        browser.key("ArrowDown")
        browser.key("Enter")
        self.sees("location.hash === '#/topic/flights'", "Enter opens it")
        self.open("produce/by-hand", "document.querySelector('form')")
        self.sees("!document.querySelector('.primary').disabled", "one can write")
        browser.run(
            "document.querySelector('textarea').value = 'hello'; "
            "document.querySelector('form').requestSubmit()"
        )
        self.sees("document.querySelector('.note.good')", "the record is on disk")


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--browser", default=shutil.which("chromium") or "chromium")
    parser.add_argument("--url", help="a console that runs already")
    parser.add_argument("--all", type=Path, help="where to leave pictures of all pages")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        url = given.url
        if url is None:
            cluster = stack.enter_context(busy_cluster())
            console = Console({"tower": cluster.tower}, listen="127.0.0.1:0", interval_ms=500)
            url = stack.enter_context(console).url
        browser = Browser(given.browser)
        stack.callback(browser.close)
        steps: list[Callable[[], None]] = [lambda: look_at(browser, url, IMAGES)]
        if given.all:
            steps.append(lambda: look_further(browser, url, given.all))
            steps.append(lambda: look_at_many(browser, given.all))
            steps.append(lambda: look_at_login(browser, given.all))
        for step in steps:
            step()
        if browser.errors:
            print("the pages complained:", *browser.errors, sep="\n  ", file=sys.stderr)
            return 1
    for path in sorted(IMAGES.glob("console_*.png")):
        # Few colours: a third of the size.  By coverage, or those of thin lines would be lost.
        with Image.open(path) as image:
            few = image.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE)
        few.save(path, optimize=True)
        print(f"{path.name}: {path.stat().st_size:,} octets")
    return 0


if __name__ == "__main__":
    sys.exit(main())
