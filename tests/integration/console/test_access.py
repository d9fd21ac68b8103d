"""Who may ask the console for what."""

from __future__ import annotations

import contextlib

import pytest

from dafka_core.console.access import HEADERS, MAX_BODY_BYTES
from dafka_core.console.server import Console
from tests.integration.console.pages import ask, post


def test_every_answer_has_headers_by_which_nothing_from_elsewhere_runs(console: Console) -> None:
    for path in ("/", "/static/app.js", "/api/overview", "/nothing", "/api/topic"):
        found = ask(console, path)
        for name, value in HEADERS.items():
            assert found.headers[name] == value, path
    assert "default-src 'self'" in HEADERS["content-security-policy"]


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example", "", "[", "10.0.0.1"])
def test_by_a_name_that_is_not_its_own_nothing_is_given(console: Console, name: str) -> None:
    for path in ("/", "/api/overview", "/events", "/static/app.js"):
        found = ask(console, path, headers={"Host": f"{name}:{console.port}"})
        assert found.status == 421, path
        assert "by a name that is not its own" in found.json["error"]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]", "127.0.0.2"])
def test_names_of_the_machine_itself_are_taken(console: Console, name: str) -> None:
    assert ask(console, "/api/overview", headers={"Host": f"{name}:{console.port}"}).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_may_link_here_and_ask_for_nothing(
    console: Console, site: str
) -> None:
    asked = {"Sec-Fetch-Site": site}
    assert ask(console, "/", headers=asked).status == 200
    for path in ("/api/overview", "/api/value", "/events"):
        assert ask(console, path, headers=asked).status == 403
    assert post(console, asked, topic="t", value="v").status == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://", "http://["]
)
def test_what_changes_something_comes_from_its_own_pages(console: Console, origin: str) -> None:
    found = post(console, {"Origin": origin}, topic="t", value="v")
    assert found.status == 403
    assert "another site" in found.json["error"]


def test_its_own_pages_and_programs_may(console: Console, dafka_topic: str) -> None:
    own = {"Origin": f"http://127.0.0.1:{console.port}", "Sec-Fetch-Site": "same-origin"}
    assert post(console, own, topic=dafka_topic, value="v").status == 200
    assert post(console, None, topic=dafka_topic, value="v").json["offset"] == 1


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_form_of_another_page_is_no_json(console: Console, kind: str) -> None:
    assert post(console, {"Content-Type": kind}, topic="t", value="v").status == 415


def test_how_much_is_sent_is_limited_and_must_be_said(console: Console) -> None:
    large = {"Content-Length": str(MAX_BODY_BYTES + 1)}
    assert ask(console, "/api/produce", "POST", None, large).status == 413
    assert (
        ask(console, "/api/produce", "POST", None, {"Transfer-Encoding": "chunked"}).status == 411
    )
    with contextlib.suppress(ConnectionError):  # it reads no more of it
        assert ask(console, "/", headers={"X-Long": "x" * 1_000_000}).status in (400, 431)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(console: Console, method: str) -> None:
    assert ask(console, "/api/overview", method).status == 405


@pytest.mark.parametrize(
    "path", ["/static/../api.py", "/static/%2e%2e/api.py", "/static//etc/passwd", "/static/x.js"]
)
def test_no_other_file_is_given(console: Console, path: str) -> None:
    assert ask(console, path).status == 404
