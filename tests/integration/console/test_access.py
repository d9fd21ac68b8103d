"""Access to the console."""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from starlette.requests import Request

from dafka_console.server import SESSION_S, Console, ConsoleLogin
from dafka_core.ops.http_server import HEADERS, MAX_BODY_BYTES
from dafka_core.security.throttles import MOST_WRONG
from dafka_core.security.web_access import Answer, Door, write_token
from dafka_core.testing import StoreDouble, wait_until
from tests.integration.console.pages import Answer as Told
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


class Locked(NamedTuple):
    console: Console
    file: Path

    @property
    def token(self) -> str:
        return self.file.read_text().strip()

    def log_in(self, token: str, **headers: str) -> Told:
        told = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        return ask(self.console, "/login", "POST", f"token={token}".encode(), told)

    def cookie(self) -> str:
        """Return the headers that a browser sends from then on."""
        return self.log_in(self.token).headers["set-cookie"].partition(";")[0]


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Locked]:
    file = tmp_path / "token"
    write_token(file)
    with (
        StoreDouble(tmp_path / "store") as store,
        Console({}, [store.location], listen="127.0.0.1:0", token_file=str(file)) as console,
    ):
        yield Locked(console, file)


PATHS = ("/api/overview", "/api/health", "/api/value", "/events", "/static/app.js", "/nothing")


def test_without_a_token_there_is_a_form_and_nothing_else(locked: Locked) -> None:
    page = ask(locked.console, "/")
    assert (page.status, page.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert b'<form class="card form" method="post" action="login">' in page.body
    # By a page without a referrer the form would come from nowhere, and be refused.
    assert page.headers["referrer-policy"] == "same-origin"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for path in PATHS:
        found = ask(locked.console, path)
        assert (found.status, found.headers["www-authenticate"]) == (401, "Bearer"), path
        assert "Authorization: Bearer" in found.json["error"]
    assert post(locked.console, topic="t", value="v").status == 401
    for path in set(re.findall(r'"(static/[^"]+)"', page.body.decode())):
        assert ask(locked.console, f"/{path}").status == 200


def test_a_form_becomes_a_cookie(locked: Locked) -> None:
    found = locked.log_in(locked.token)
    assert (found.status, found.headers["location"]) == (303, "./")
    cookie, *rules = found.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} < {*rules}
    assert locked.token not in cookie
    for path in ("/", "/api/overview", "/static/app.js"):
        assert ask(locked.console, path, headers={"Cookie": f"other=1; {cookie}"}).status == 200


def test_where_a_form_has_led_to_may_be_asked_for_again(locked: Locked) -> None:
    found = ask(locked.console, "/login")
    assert (found.status, found.headers["location"]) == (303, "./")


def test_a_link_becomes_a_cookie(locked: Locked) -> None:
    found = ask(locked.console, "/", token=locked.token)
    assert (found.status, found.headers["location"]) == (303, "./")
    cookie = found.headers["set-cookie"].partition(";")[0]
    assert ask(locked.console, "/api/overview", headers={"Cookie": cookie}).status == 200
    # It is for pages: the token of an address that programs ask for would be in logs.
    assert ask(locked.console, "/api/overview", token=locked.token).status == 401


def test_a_program_says_the_token(locked: Locked) -> None:
    told = {"Authorization": f"Bearer {locked.token}"}
    for path in ("/", "/api/overview"):
        assert ask(locked.console, path, headers=told).status == 200
    for wrong in ("Bearer x", f"Basic {locked.token}", "Bearer"):
        assert ask(locked.console, "/api/overview", headers={"Authorization": wrong}).status == 401


def test_a_wrong_token_is_told_and_guesses_end(locked: Locked) -> None:
    cookie = locked.cookie()
    for count in range(MOST_WRONG):
        found = locked.log_in("wrong") if count % 2 else ask(locked.console, "/", token="wrong")
        assert found.status == 401
        assert b"That is not the token." in found.body
    for found in (
        locked.log_in(locked.token),
        ask(locked.console, "/", token=locked.token),
        ask(locked.console, "/api/map", headers={"Authorization": f"Bearer {locked.token}"}),
    ):
        assert found.status == 429
        assert b"wrong tokens came from this address" in found.body
    # Authenticated users stay.
    assert ask(locked.console, "/api/overview", headers={"Cookie": cookie}).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_cannot_log_in_or_guess(locked: Locked, site: str) -> None:
    assert locked.log_in(locked.token, **{"Sec-Fetch-Site": site}).status == 403
    assert locked.log_in(locked.token, Origin="http://evil.example").status == 403
    for _ in range(MOST_WRONG + 1):
        asked = ask(locked.console, "/", headers={"Sec-Fetch-Site": site}, token="wrong")
        assert asked.status == 401
    assert locked.log_in(locked.token).status == 303


def test_with_a_cookie_other_sites_are_refused_all_the_same(locked: Locked) -> None:
    cookie = {"Cookie": locked.cookie()}
    for more in ({"Sec-Fetch-Site": "cross-site"}, {"Host": f"evil.example:{locked.console.port}"}):
        for path in ("/api/overview", "/events"):
            assert ask(locked.console, path, headers=cookie | more).status in (403, 421)
    assert post(locked.console, cookie | {"Origin": "http://evil.example"}).status == 403


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"{}", 415),
        ("application/x-www-form-urlencoded", b"x" * 5_000, 413),
        ("application/x-www-form-urlencoded", b"", 401),
        ("application/x-www-form-urlencoded", b"token=", 401),
        ("application/x-www-form-urlencoded", b"&" * 4_000, 401),
        ("application/x-www-form-urlencoded", b"\xff=%ff&token=%ff", 401),
    ],
)
def test_what_is_no_form_is_refused(locked: Locked, kind: str, body: bytes, status: int) -> None:
    found = ask(locked.console, "/login", "POST", body, {"Content-Type": kind})
    assert found.status == status


def test_another_token_ends_sessions(locked: Locked) -> None:
    cookie = {"Cookie": locked.cookie()}
    locked.file.unlink()
    assert ask(locked.console, "/api/overview", headers=cookie).status == 401
    write_token(locked.file)
    assert ask(locked.console, "/api/overview", headers=cookie).status == 401
    again = {"Cookie": locked.cookie()}
    assert ask(locked.console, "/api/overview", headers=again).status == 200


def request(*cookies: str) -> Request:
    headers = [(b"cookie", each.encode("latin-1")) for each in cookies]
    return Request({"type": "http", "headers": headers, "client": ("10.0.0.1", 1)})


def test_a_session_ends_and_cannot_be_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door("the console", "token_file")
    login = ConsoleLogin(door, 8046)
    name, now = "dafka_console_8046", int(time.time())
    value = login.session(now)
    since, _, signed = value.partition(".")
    assert int(since) == now
    for wrong in (
        *(f"{now + 1}.{signed}", f"{since}.", f"{since}.{signed}0", f".{signed}", f"-1.{signed}"),
        *(f"{'9' * 40}.{signed}", f"²{since}.{signed}", "", "x"),
    ):
        assert login.judge(request(f"{name}={wrong}")) is Answer.WRONG
    cookie = f"{name}={value}"
    assert ConsoleLogin(door, 8047).judge(request(cookie)) is Answer.WRONG
    assert login.judge(request("\0", cookie)) is Answer.RIGHT
    then = time.time() + SESSION_S + 1
    monkeypatch.setattr(time, "time", lambda: then)
    assert login.judge(request(cookie)) is Answer.WRONG


def test_probes_need_no_token_and_are_told_one_word(locked: Locked) -> None:
    for path, word in (("/healthz", b"ok\n"), ("/readyz", b"ready\n")):
        wait_until(lambda path=path: ask(locked.console, path).status == 200)  # type: ignore[misc]
        assert ask(locked.console, path).body == word
    told = {"Authorization": f"Bearer {locked.token}", "Accept": "application/json"}
    [finding] = ask(locked.console, "/readyz", headers=told).json["findings"]
    assert (finding["kind"], finding["about"]) == ("console", "stores")


def test_no_answer_has_the_token_in_it(locked: Locked) -> None:
    cookie = {"Cookie": locked.cookie()}
    secrets = (locked.token.encode(), str(locked.file).encode())
    for path in ("/", "/api/overview", "/api/health", "/api/map", "/api/topics", "/api/queries"):
        found = ask(locked.console, path, headers=cookie)
        assert found.status == 200, path
        assert not any(each in found.body for each in secrets), path
