"""The console's pages in a real Chromium, where one is installed."""

import http.client
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_console import api
from dafka_console.server import Console
from dafka_core import Consumer, EmbeddedCluster, Producer
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import TopicPartition
from dafka_core.queries.query_progress import QueryProgress, publish
from dafka_core.security.web_access import write_token
from dafka_core.testing import PATIENCE_S, wait_until
from scripts.browser import Browser
from scripts.console_pictures import Checks, busy_cluster, look_at_login, look_at_many, look_further
from tests.integration.console.reverse_proxy import below_a_path

CHROMIUM = shutil.which("chromium") or ""

pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="Chromium is not installed (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    made = Browser(CHROMIUM)
    yield made
    made.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Start with an empty page."""
    yield chromium
    errors = [*chromium.errors]
    chromium.leave()
    assert not errors


@pytest.mark.nightly
def test_pages_show_a_cluster_by_mouse_and_keyboard_on_a_screen_and_a_phone(
    browser: Browser, tmp_path: Path
) -> None:
    with (
        busy_cluster() as cluster,
        Console({"tower": cluster.tower}, listen="127.0.0.1:0", interval_ms=500) as console,
    ):
        look_further(browser, console.url, tmp_path)


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_what_was_known_last_stays_grey_under_a_banner_while_no_store_answers(
    browser: Browser, own: EmbeddedCluster, dafka_topic: str, width: int, height: int
) -> None:
    with Producer(dafka_topic, tower=own.tower) as producer:
        producer.publish_many([b"%d" % n for n in range(500)])
        producer.flush(PATIENCE_S)
    with Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=200) as console:
        check = Checks(browser, console.url)
        browser.size(width, height)
        badge = "document.querySelector('.live').textContent"
        banner = "document.querySelector('#away').textContent"
        grey = "document.querySelector('#page.stale')"
        row = "document.querySelector('.list-row')?.textContent"
        check.open("topics", f"{row}?.includes('500') && {badge} === 'live' && {banner} === ''")
        check.open(f"topic/{dafka_topic}", "document.querySelectorAll('.record').length === 12")
        offsets = "[...document.querySelectorAll('.record')].map((each) => each.dataset.offset)"
        assert browser.run(offsets) == [str(offset) for offset in range(499, 487, -1)]
        browser.run("location.hash = '#/topics'")
        check.sees(f"{row}?.includes('500')", "the topics")
        own.kill_store(0)
        check.sees(f"{banner}.startsWith('1 of 2 stores away: ')", "one of two is away")
        check.sees(f"{badge} === 'live' && !{grey} && {row}.includes('500')", "the other has all")
        own.kill_store(1)
        for path in ("topics", "", f"topic/{dafka_topic}", "queries", "groups", "topics"):
            check.open(path, f"{badge} === 'no store' && {grey}")
            check.sees(f"/^No store answers; away: .* since 20.*, .* since /.test({banner})", path)
            check.sees(f"document.documentElement.scrollWidth === {width}", "nothing is cut off")
            text = browser.run("document.body.innerText")
            assert "No topics yet" not in text
            assert "No consumer group" not in text
        check.sees(f"{row}.includes('500')", "what was known last")
        own.start_store(0)
        own.start_store(1)
        check.sees(f"{badge} === 'live' && !{grey} && {banner} === ''", "both are back")
    check.sees(f"{banner}.startsWith('The console does not answer since 20')", "the console ended")
    check.sees(f"{badge} === 'no console' && {grey} && {row}.includes('500')", "it is not live")
    browser.errors = [each for each in browser.errors if "net::ERR_" not in each]


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_a_record_is_found_by_text_and_time_over_all_partitions_of_a_topic(
    browser: Browser, own: EmbeddedCluster, dafka_topic: str, width: int, height: int
) -> None:
    for name in "abc":
        with Producer(dafka_topic, tower=own.tower) as producer:
            producer.publish_many([b"%s %d" % (name.encode(), n) for n in range(60)])
            producer.flush(PATIENCE_S)
    with Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=200) as console:
        wait_until(lambda: dafka_topic in console.view.snapshot.partitions.topics, "it is known")
        check = Checks(browser, console.url)
        browser.size(width, height)
        values = "[...document.querySelectorAll('.record .value')].map((each) => each.textContent)"
        said = "document.querySelector('.said').textContent"
        fits = f"document.documentElement.scrollWidth === {width}"
        inputs = "const [find, where, from, to] = document.querySelectorAll('.finder input');"
        submit = "document.querySelector('.finder').requestSubmit();"
        check.open(f"topic/{dafka_topic}", "document.querySelectorAll('.record').length === 12")
        browser.run("document.querySelector('a.button[href^=\"#/records/\"]').click()")
        check.sees(f"{said} === '1 to 50 of 180, newest first' && {fits}", "the newest records")
        newest = [f"{name} {n}" for name in "cba" for n in range(59, -1, -1)]
        assert browser.run(values) == newest[:50]
        for key, page in (("Right", 0), ("Left", 1), ("Left", 2), ("Left", 3), ("Right", 2)):
            browser.key(f"Arrow{key}")
            shown = newest[50 * page : 50 * page + 50]
            text = f"{50 * page + 1} to {50 * page + len(shown)} of 180, newest first"
            check.sees(f"{said} === '{text}'", f"page {page}")
            assert browser.run(values) == shown
        browser.run(f"{{{inputs} find.value = ' 17'; {submit}}}")
        check.sees(f"{said} === '3 found in 180 of 180 records'", "three are found")
        assert browser.run(values) == ["c 17", "b 17", "a 17"]
        browser.run("document.querySelectorAll('.record')[1].click()")
        check.sees(
            "document.querySelector('.detail .text')?.textContent === 'b 17'", "one is opened"
        )
        check.sees(fits, "nothing is cut off")
        browser.run(f"{{{inputs} where.value = 'offset < 17'; {submit}}}")
        check.sees(f"{said} === '0 found in 180 of 180 records'", "none fits both")
        local = "(ms) => new Date(ms - 60000 * new Date().getTimezoneOffset()).toISOString()"
        for name, since_ms, until_ms, count in (
            ("all were written in the last hour", -3_600_000, 3_600_000, "1 to 50 of 180"),
            ("none were written later", 3_600_000, 7_200_000, ""),
            ("none were written before", -7_200_000, -3_600_000, ""),
        ):
            browser.run(
                f"{{{inputs} const local = {local}; find.value = where.value = '';"
                f"from.value = local(Date.now() + {since_ms}).slice(0, 19);"
                f"to.value = local(Date.now() + {until_ms}).slice(0, 19); {submit}}}"
            )
            check.sees(f"{said} === {f'{count}, newest first' if count else ''!r}", name)
            if not count:
                title = "document.querySelector('.empty').textContent"
                check.sees(f"{title}.includes('in this time')", name)


def test_the_keyboard_keeps_its_place_when_a_page_is_drawn_anew(
    browser: Browser, own: EmbeddedCluster, dafka_topic: str
) -> None:
    with (
        Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=200) as console,
        Producer(dafka_topic, tower=own.tower) as producer,
    ):
        producer.publish_many([b"x"] * 5)
        producer.flush(PATIENCE_S)
        wait_until(lambda: dafka_topic in console.view.snapshot.partitions.topics, "it is known")
        check = Checks(browser, console.url)
        check.open(f"topic/{dafka_topic}", "document.querySelectorAll('.record').length === 5")
        browser.run("window.before = document.querySelectorAll('.record')[2]; before.focus()")
        check.sees("!before.isConnected", "the records are drawn anew")
        focused = "document.activeElement.dataset.offset"
        assert browser.run(focused) == "2"
        producer.publish(b"y")
        check.sees("document.querySelectorAll('.record').length === 6", "there is one more")
        assert browser.run(focused) == "2"
        browser.run("window.before = document.querySelector('#bar [title=\"keys (?)\"]')")
        browser.run("before.focus()")
        check.sees("!before.isConnected", "the bar is drawn anew")
        assert browser.run("document.activeElement.title") == "keys (?)"


def test_lists_are_shown_also_if_an_answer_takes_longer_than_the_next_news(
    browser: Browser, own: EmbeddedCluster, dafka_topic: str
) -> None:
    with Producer(dafka_topic, tower=own.tower) as producer:
        producer.publish(b"x")
    with Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=100) as console:
        check = Checks(browser, console.url)
        check.open("health", "document.querySelector('.finding')")
        browser.run(
            "window.real = fetch; window.fetch = (...of) => /topics/.test(of[0])"
            " ? new Promise((go) => setTimeout(go, 500)).then(() => real(...of)) : real(...of);"
            "location.hash = '#/topics'"
        )
        row = "document.querySelector('.list-row')?.textContent"
        check.sees(f"{row}?.includes('{dafka_topic}')", "the topic is shown")


def test_tabs_in_the_background_keep_no_connection(
    browser: Browser, own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Browsers open six to a host: pages in six tabs would wait for each other for ever."""
    monkeypatch.setattr(api, "MOST_VIEWERS", 1)
    with Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=200) as console:

        def is_free() -> bool:
            asking = http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE_S)
            asking.request("GET", "/events")
            status = asking.getresponse().status
            asking.close()
            return status == 200

        def show(*, hidden: bool) -> None:
            value = str(hidden).lower()
            browser.run(
                f"Object.defineProperty(document, 'hidden', {{ value: {value}, writable: true }});"
                "document.dispatchEvent(new Event('visibilitychange'))"
            )

        check, live = Checks(browser, console.url), "document.querySelector('.live').textContent"
        check.open("health", f"{live} === 'live'")
        assert not is_free()
        show(hidden=True)
        wait_until(is_free, "it has left its connection")
        monkeypatch.undo()
        browser.run("window.before = document.querySelector('.live')")
        show(hidden=False)
        check.sees(f"!before.isConnected && {live} === 'live'", "news come again")


def test_the_record_that_was_opened_last_is_shown(
    browser: Browser, own: EmbeddedCluster, dafka_topic: str
) -> None:
    with Producer(dafka_topic, tower=own.tower) as producer:
        producer.publish_many([b"slow", b"fast"])
        producer.flush(PATIENCE_S)
    with Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=200) as console:
        wait_until(lambda: dafka_topic in console.view.snapshot.partitions.topics, "it is known")
        check = Checks(browser, console.url)
        check.open(f"records/{dafka_topic}", "document.querySelectorAll('.record').length === 2")
        browser.run(
            "window.real = fetch; window.slow = new Promise((go) => { window.answer = go; });"
            "window.fetch = (...of) => /offset=0/.test(of[0])"
            " ? slow.then(() => real(...of)).then((found) => (window.came = found)) : real(...of);"
            "const [fast, slowly] = document.querySelectorAll('.record'); slowly.click();"
            "fast.click()"
        )
        shown = "document.querySelector('.detail .text')?.textContent"
        check.sees(f"{shown} === 'fast'", "the second one is opened")
        browser.run("answer()")
        check.sees("window.came?.bodyUsed", "the first one has come")
        browser.run("new Promise((done) => setTimeout(done))")
        assert browser.run(shown) == "fast"


def test_all_headers_that_are_entered_are_written_and_lines_that_are_none_refused(
    browser: Browser, own: EmbeddedCluster, dafka_topic: str
) -> None:
    with Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=200) as console:
        check = Checks(browser, console.url)
        check.open(f"produce/{dafka_topic}", "document.querySelector('form')")
        check.sees("!document.querySelector('.primary').disabled", "one can write")
        fill = "document.querySelectorAll('textarea')[1].value ="
        submit = "document.querySelector('form').requestSubmit()"
        browser.run(f"{fill} 'one: 1\\nodd'; {submit}")
        check.sees("document.querySelector('.stack .bad')?.textContent.includes(\"'odd'\")", "why")
        browser.run(f"{fill} 'one: 1\\n\\none: 2'; {submit}")
        check.sees("document.querySelector('.note.good')", "the record is on disk")
        with Consumer(tower=own.tower) as consumer:
            consumer.subscribe(dafka_topic)
            record = consumer.poll(PATIENCE_S)
        assert record is not None
        assert record.headers == (("one", b"1"), ("one", b"2"))


def test_a_window_of_the_charts_is_chosen_by_keyboard_and_clients_are_named(
    browser: Browser, own: EmbeddedCluster, dafka_topic: str
) -> None:
    with (
        Producer(dafka_topic, tower=own.tower, client_name="a <b>feed</b>") as producer,
        Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=200) as console,
    ):
        producer.publish(b"value")
        producer.flush(PATIENCE_S)
        wait_until(lambda: dafka_topic in console.view.snapshot.partitions.topics, "it is known")
        check = Checks(browser, console.url)
        browser.size(1400, 900)
        label = "document.querySelector('.chart')?.getAttribute('aria-label')"
        check.open(f"topic/{dafka_topic}", f"{label}?.includes('last 10 minutes: now ')")
        check.sees("document.querySelector('.list-row')?.textContent.includes('a <b>feed</b>')", "")
        last = "document.querySelector('.list-row .cell:last-child')"
        exact = r"/^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}$/"
        check.sees(f"{exact}.test({last}.title)", "when its producer wrote last")
        mark = "document.querySelector('.list-row .badge').getBoundingClientRect()"
        first = "document.querySelector('.list-row .cell').getBoundingClientRect()"
        check.sees(f"{mark}.right <= {first}.right", "the badge of its producer is not cut off")
        browser.size(390, 844)
        check.sees(f"{last}.offsetWidth && {last}.title", "also on a phone")
        browser.size(1400, 900)
        browser.run("document.querySelector('.choice button').focus()")
        browser.key("Tab")
        browser.key("Enter", "\r")
        check.sees(f"{label}.includes('last 6 hours: now ')", "the next button is pressed")
        chosen = "document.activeElement.getAttribute('aria-pressed') === 'true'"
        check.sees(chosen, "the button keeps the focus")
        check.sees("document.querySelector('.chart .line').getAttribute('d')", "the chart's line")
        browser.run("document.activeElement.blur()")
        browser.key("m", "m")
        check.sees("document.querySelectorAll('.chart').length === 2", "the map's charts")
        check.sees(f"{label}.includes('records per second, last 6 hours')", "on each page")
        producers = "[...document.querySelectorAll('.node.producer title')]"
        check.sees(f"{producers}.some((each) => each.textContent.startsWith('a <b>feed'))", "named")


def test_a_query_s_partitions_stay_open_and_are_asked_for_once_with_each_news(
    browser: Browser, own: EmbeddedCluster, dafka_topic: str
) -> None:
    with Producer(dafka_topic, tower=own.tower) as producer:
        producer.publish(b"value")
        producer.flush(PATIENCE_S)
        progress = QueryProgress("q", "r", 3600.0, ()).at(
            {TopicPartition(dafka_topic, producer.address): 0}
        )
    with StoreClient(StoreLocation(own.stores[0], own.locations())) as client:
        publish([client], QUERIES_TOPIC, progress, timeout_s=PATIENCE_S)
    with Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=200) as console:
        check = Checks(browser, console.url)
        check.open("queries", "document.querySelector('details')")
        browser.run("document.querySelector('details').open = true")
        check.sees("document.querySelector('details[open] td')", "its partitions")
        browser.run(
            "window.bare = 0; new MutationObserver(() => {"
            " if (!document.querySelector('details[open] td')) bare += 1;"
            "}).observe(document.querySelector('#page'), { childList: true, subtree: true });"
            "performance.clearResourceTimings()"
        )
        loads = "performance.getEntriesByType('resource')"
        asked = f"{loads}.filter((each) => each.name.includes('api/%s?')).length"
        check.sees(f"{asked % 'queries'} >= 5", "it is drawn anew")
        assert browser.run(f"[bare, {asked % 'query'} <= {asked % 'queries'} + 1]") == [0, True]


def click_slowly(browser: Browser, check: Checks, element: str, left: int, requested: str) -> None:
    """Press the mouse until the page has made four more requests."""
    place = browser.run(f"(({{x, y}}) => ({{x, y}}))({element}.getBoundingClientRect())")
    mouse = {"x": place["x"] + left, "y": place["y"] + 9, "button": "left", "clickCount": 1}
    loads = "performance.getEntriesByType('resource')"
    count = f"{loads}.filter((each) => each.name.includes('{requested}')).length"
    before = browser.run(count)
    browser.call("Input.dispatchMouseEvent", type="mousePressed", **mouse)
    check.sees(f"{count} > {before + 3}", "it is requested again")
    browser.call("Input.dispatchMouseEvent", type="mouseReleased", **mouse)


def test_a_click_that_lasts_longer_than_the_news_opens_a_row(
    browser: Browser, own: EmbeddedCluster, dafka_topic: str
) -> None:
    with (
        Producer(dafka_topic, tower=own.tower) as producer,
        Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=100) as console,
    ):
        producer.publish(b"value")
        producer.flush(PATIENCE_S)
        check = Checks(browser, console.url)
        browser.size(1280, 800)
        check.open("topics", "document.querySelector('.list-row')")
        click_slowly(browser, check, "document.querySelector('.list-row')", 300, "api/topics")
        check.sees(f"location.hash === '#/topic/{dafka_topic}'", "the row is opened")


def test_records_that_are_followed_keep_the_focus_and_are_opened_by_a_long_click(
    browser: Browser, own: EmbeddedCluster, dafka_topic: str
) -> None:
    with Producer(dafka_topic, tower=own.tower) as producer:
        producer.publish_many([b"x"] * 5)
        producer.flush(PATIENCE_S)
    with Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=100) as console:
        wait_until(lambda: dafka_topic in console.view.snapshot.partitions.topics, "it is known")
        check = Checks(browser, console.url)
        browser.size(1280, 800)
        records = "document.querySelectorAll('.record')"
        check.open(f"records/{dafka_topic}", f"{records}.length === 5")
        browser.run("document.querySelector('.pager input[type=checkbox]').click()")
        browser.run(f"window.before = {records}[2]; before.focus()")
        check.sees("!before.isConnected", "the records are drawn anew")
        focused = "document.activeElement.dataset.offset"
        assert browser.run(focused) == "2"
        browser.run(
            "document.activeElement.dispatchEvent("
            "new KeyboardEvent('keydown', { key: 'j', bubbles: true }))"
        )
        assert browser.run(focused) == "1"
        click_slowly(browser, check, f"{records}[0]", 60, "api/records")
        check.sees("document.querySelector('.detail h2')?.textContent === 'Offset 4'", "it is open")


def test_a_page_says_that_no_store_was_ever_there_and_when_there_are_no_topics(
    browser: Browser, own: EmbeddedCluster
) -> None:
    own.kill_store(0)
    own.kill_store(1)
    with Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=200) as console:
        check = Checks(browser, console.url)
        title = "document.querySelector('.empty-title')?.textContent"
        check.open("topics", f"{title} === 'No store answers'")
        check.sees("document.querySelector('.live').textContent === 'no store'", "it is not live")
        own.start_store(0)
        check.sees(f"{title} === 'No topics yet'", "an empty store is found")
        note = "document.querySelector('#page .note.bad')?.textContent"
        says = "'none': no store that answers has records of it"
        for page in ("topic/none", "records/none"):
            check.open(page, f'{note} === "{says}"')
        browser.errors = [each for each in browser.errors if "400 (Bad Request)" not in each]
        check.open("topics", f"{title} === 'No topics yet'")
        check.sees("document.querySelector('.live').textContent === 'live'", "it is live")


def test_a_reverse_proxy_serves_the_console_below_a_path(
    browser: Browser, own: EmbeddedCluster, dafka_topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    write_token(file)
    with (
        Producer(dafka_topic, tower=own.tower) as producer,
        Console({"tower": own.tower}, listen="127.0.0.1:0", token_file=str(file)) as console,
        below_a_path(console.port) as url,
    ):
        producer.publish(b"value")
        producer.flush(PATIENCE_S)
        wait_until(lambda: dafka_topic in console.view.snapshot.partitions.topics, "it is known")
        check = Checks(browser, url)
        form = "document.querySelector('#token')"
        check.open("", form)
        token = file.read_text(encoding="utf-8").strip()
        browser.run(f"{form}.value = '{token}'; {form}.form.requestSubmit()")
        check.sees("document.querySelector('.live')?.textContent === 'live'", "its events")
        check.open(f"topic/{dafka_topic}", "document.querySelectorAll('.record').length === 1")
        check.sees("document.querySelector('.logo img').naturalWidth > 0", "a picture")
        heads = (
            "[...document.querySelectorAll('.record-head span')].map((each) => each.textContent)"
        )
        assert browser.run(heads) == ["time", "partition", "offset", "key", "value", "format, size"]
        check.open(f"produce/{dafka_topic}", "!document.querySelector('.primary').disabled")
        browser.run(
            "document.querySelector('textarea').value = 'another';"
            "document.querySelector('form').requestSubmit()"
        )
        check.sees("document.querySelector('.note.good')", "the record is on disk")
        check.open(f"topic/{dafka_topic}", "document.querySelectorAll('.record').length === 2")
        assert browser.run("location.href").startswith(url)
    browser.errors = [each for each in browser.errors if "401 (Unauthorized)" not in each]


@pytest.mark.nightly
def test_ten_thousand_partitions_are_shown_by_few_rows(browser: Browser, tmp_path: Path) -> None:
    look_at_many(browser, tmp_path)


def test_who_may_look_logs_in_by_form_and_by_link(browser: Browser, tmp_path: Path) -> None:
    look_at_login(browser, tmp_path)
