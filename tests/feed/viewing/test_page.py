"""The page of ``mpwds show --web``: who gets in, and what a browser shows."""

import contextlib
import http.client
import io
import json
import math
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from mpwds.errors import MpwdsError
from mpwds.feed.page import Page
from mpwds.feed.report import feed_report, lost
from tests.feed.viewing.statuses import client, reading, status, worker
from tests.loader.faults.processes import wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)


class Pretended:
    """A feed that sends 10 batches a second, faster each second, of red images labelled 0 to 4."""

    name = "tcp://cpu1:7880"

    def __init__(self):
        self.seconds = 0
        self.batches = 0
        self.peeks = 0
        self.failure = None
        self.lost = []
        self.classes = ()
        self.previous = None

    def read(self):
        if self.failure:
            raise MpwdsError(self.failure)
        self.seconds += 1
        self.batches += 10 * self.seconds
        counters = reading(self.seconds, batches=self.batches, skipped={"decode: ValueError": 2})
        previous, self.previous = self.previous, [status(self.seconds, [worker(0, counters)], [client()])]
        return feed_report(previous, self.previous + self.lost)

    def peek(self, timeout_s):
        self.peeks += 1
        if self.failure:
            raise MpwdsError(self.failure)
        images = np.zeros((5, 32, 32, 3), np.uint8)
        images[..., self.peeks % 3] = 200
        return {"image": images, "label": np.arange(5), "loss": np.array([np.nan, 1.0])}

    def close(self): ...


@pytest.fixture
def feed():
    return Pretended()


@pytest.fixture
def page(feed):
    with Page(feed) as page:
        yield page
    assert not [each for each in threading.enumerate() if each.name.startswith("mpwds page")]


def ask(page, path, method="GET", **headers):
    """The status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode("utf-8", "replace")


def path_of(page):
    address = urlsplit(page.url)
    return f"{address.path}?{address.query}"


@pytest.fixture
def cookie(page):
    """What a browser sends after it has followed the link."""
    _, headers, _ = ask(page, path_of(page))
    return {"Cookie": headers["Set-Cookie"].partition(";")[0]}


def test_the_link_opens_the_page_once(page):
    first, headers, body = ask(page, path_of(page))
    assert first == 200
    assert "<html" in body
    assert re.search(r"; Path=/; HttpOnly; SameSite=Strict$", headers["Set-Cookie"])
    again, headers, body = ask(page, path_of(page))
    assert again == 403
    assert "Set-Cookie" not in headers
    assert "<html" not in body


def test_without_the_cookie_nothing_is_shown(page):
    for path in ("/", "/figures.json", "/batch.json", "/batch.png", "/icon.svg", "/nothing"):
        assert ask(page, path)[0] == 403, path
        assert ask(page, f"{path}?token=wrong")[0] == 403, path
        assert ask(page, path, Cookie=f"mpwds-{page.port}=wrong")[0] == 403, path
        assert ask(page, path, Cookie="\xff\xfe=;;=\x01")[0] == 403, path


def test_the_token_opens_the_page_only(page):
    assert ask(page, path_of(page).replace("/?", "/figures.json?"))[0] == 403
    assert ask(page, path_of(page))[0] == 200


def test_the_cookie_opens_the_page_again_and_its_data(page, cookie):
    for path, kind in {
        "/": "text/html",
        "/figures.json": "application/json",
        "/icon.svg": "image/svg+xml",
    }.items():
        found, headers, _ = ask(page, path, **cookie)
        assert found == 200
        assert headers["Content-Type"].startswith(kind)
    found, _, body = ask(page, "/../etc/passwd", **cookie)
    assert (found, body) == (404, "there is no such page\n")


HOSTS = ["example.org", "example.org:{port}", "127.example.org", "10.0.0.1:{port}", "x:y", ""]


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_that_another_site_points_here_is_refused(page, host):
    assert ask(page, path_of(page), Host=host.format(port=page.port))[0] == 403
    assert ask(page, path_of(page), Host="localhost:9000")[0] == 200  # through a tunnel


def test_nothing_but_get_is_answered(page, cookie):
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT"):
        found, headers, _ = ask(page, "/", method, **cookie)
        assert (found, headers["Allow"]) == (405, "GET"), method


def test_the_body_of_a_request_that_is_refused_is_not_taken_for_the_next_one(page, cookie):
    host = f"Host: 127.0.0.1:{page.port}\r\n"
    hidden = f"GET /icon.svg HTTP/1.1\r\n{host}Cookie: {cookie['Cookie']}\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", page.port), timeout=60) as connection:
        request = f"POST / HTTP/1.1\r\n{host}Content-Length: {len(hidden)}\r\n\r\n{hidden}"
        connection.sendall(request.encode())
        with connection.makefile("rb") as answers:
            assert answers.read().count(b"HTTP/1.0 ") == 1


def test_the_policy_lets_only_its_own_script_and_style_run(page, cookie):
    policies = []
    for _ in range(2):
        _, headers, body = ask(page, "/", **cookie)
        nonces = set(re.findall(r'nonce="([^"]+)"', body))
        policies.append(headers["Content-Security-Policy"])
        assert len(nonces) == 1
        assert policies[-1].startswith("default-src 'none'; ")
        assert f"script-src 'nonce-{nonces.pop()}';" in policies[-1]
        assert "unsafe" not in policies[-1]
    assert policies[0] != policies[1]


def test_the_page_needs_nothing_from_elsewhere(page, cookie):
    _, _, body = ask(page, "/", **cookie)
    assert re.findall(r"https?://[^\"')\s]+", body) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<[^>]+ (on\w+|style)=", body)


def test_nobody_else_is_told_and_nothing_is_stored(page, cookie):
    _, headers, _ = ask(page, "/figures.json", **cookie)
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers


def test_a_batch_is_received_only_when_somebody_looks_and_not_each_time(page, feed, cookie, monkeypatch):
    assert feed.peeks == 0
    batches = [json.loads(ask(page, "/batch.json", **cookie)[2])]
    monkeypatch.setattr("mpwds.feed.page._PEEK_EVERY_S", math.inf)  # not before we have looked three times
    batches += [json.loads(ask(page, "/batch.json", **cookie)[2]) for _ in range(2)]
    assert feed.peeks == 1
    assert [label for label, _ in batches[0]["samples"]] == ["0", "1", "2", "3", "4"]


def test_labels_are_the_names_of_classes_where_they_are_known(page, feed, cookie):
    feed.classes = ["tench", "goldfish", "shark"]
    samples = json.loads(ask(page, "/batch.json", **cookie)[2])["samples"]
    assert [label for label, _ in samples] == ["tench", "goldfish", "shark", "3", "4"]


def test_the_history_has_a_point_for_each_reading_and_forgets_the_oldest(feed, monkeypatch):
    monkeypatch.setattr("mpwds.feed.page._READ_EVERY_S", 0.001)
    with Page(feed) as page:
        wait_until(lambda: feed.seconds > 3, "readings")
        feed.failure = "it is away"
        wait_until(lambda: page.content.figures()["error"], "a reading without an answer")
    first, *history = page.content.figures()["history"]
    times, batches, megabytes = zip(*history, strict=True)
    assert (first[1:], list(times)) == ([None, None], sorted(times))
    rates = [rate for rate in batches if rate is not None]
    assert rates == [10 * second for second in range(2, feed.seconds + 1)]
    assert set(batches[len(rates) :]) == {None}
    assert megabytes == batches  # of a megabyte each
    monkeypatch.setattr("mpwds.feed.page._HISTORY", 2)
    with Page(Pretended()) as page:
        wait_until(
            lambda: page.content.figures()["history"][-1:] and page.content._source.seconds > 4, "more"
        )
    assert len(page.content.figures()["history"]) == 2


def test_what_is_told_of_a_batch(page, feed, cookie):
    told = json.loads(ask(page, "/batch.json", **cookie)[2])
    assert (told["number"], told["kind"], told["note"], told["total"]) == (1, "image", '["image"]', 5)
    assert (told["columns"], told["error"]) == (8, "")
    assert told["samples"] == [[str(label), ""] for label in range(5)]
    assert [row[0] for row in told["tensors"]["rows"]] == ['["image"]', '["label"]', '["loss"]']
    assert told["histograms"][1:] == [[1] * 5, [1]]
    feed.failure = "no worker sent a batch"
    page.content._peeked_s -= 5
    failed = json.loads(ask(page, "/batch.json", **cookie)[2])
    assert failed == {**told, "error": "no worker sent a batch"}  # the last one stays
    feed.failure = None
    page.content._peeked_s -= 5
    again = json.loads(ask(page, "/batch.json", **cookie)[2])
    assert (again["number"], again["error"]) == (2, "")


def test_the_picture_has_the_tiles_of_32_samples_in_rows_of_eight(page, feed, cookie, monkeypatch):
    images = np.zeros((40, 8, 8, 3), np.uint8)
    images[..., 0] = np.arange(40)[:, None, None] + 1
    monkeypatch.setattr(feed, "peek", lambda timeout_s: {"image": images, "label": np.arange(40)})
    told = json.loads(ask(page, "/batch.json", **cookie)[2])
    assert (len(told["samples"]), told["total"]) == (32, 40)
    with Image.open(io.BytesIO(page.content.picture)) as picture:
        assert picture.size == (8 * 128, 4 * 128)
        reds = np.asarray(picture)[64::128, 64::128, 0]
    assert reds.ravel().tolist() == list(range(1, 33))


REFUSALS = {
    "another's name": ("GET", {"Host": "example.org"}, 403, "this page is at http://127.0.0.1:{port} only\n"),
    "no cookie": (
        "GET",
        {},
        403,
        "the link has been used already, or is wrong: start the command again for a new one\n",
    ),
    "another method": ("POST", {}, 405, "this page only shows\n"),
}


@pytest.mark.parametrize(("method", "headers", "code", "text"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_says_why_and_shows_nothing_in_frames(page, capfd, method, headers, code, text):
    found, answered, body = ask(page, "/", method, **headers)
    assert (found, body) == (code, text.format(port=page.port))
    assert answered["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert answered["Cross-Origin-Opener-Policy"] == "same-origin"
    assert answered["Cross-Origin-Resource-Policy"] == "same-origin"
    assert answered["Server"].strip() == "mpwds"
    assert capfd.readouterr() == ("", "")  # requests are not logged


def test_nothing_is_printed_of_browsers_that_leave_in_the_middle_of_a_request(feed, cookie, page, capfd):
    request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie['Cookie']}\r\n\r\n".encode()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", page.port)) as browser:
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            browser.sendall(request * 20)
    page.close()
    assert capfd.readouterr().err == ""


# In a browser


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if BROWSER is None:
        pytest.skip(f"there is no browser here: none of {', '.join(NAMES)}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser):
    """A tab whose console must stay empty."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab, said = context.new_page(), []
    tab.set_default_timeout(120_000)
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    yield tab
    context.close()
    assert said == []


@pytest.mark.slow
def test_a_browser_shows_figures_pictures_tensors_and_clients(page, tab):
    assert tab.goto(page.url).status == 200
    tab.wait_for_selector("#samples figure")
    tab.wait_for_selector("#stages .stage")
    assert tab.title() == "tcp://cpu1:7880"
    assert "decode('rgb8') takes 70% of worker time" in tab.inner_text("#verdict")
    assert "70%" in tab.inner_text(".stage.top")
    assert tab.eval_on_selector_all("figcaption", "all => all.map(one => one.textContent)") == list("01234")
    assert tab.locator("#batches svg, #megabytes svg").count() == 2
    tensors = tab.inner_text("#tensors")
    assert '["image"]' in tensors
    assert "[5, 32, 32, 3]" in tensors
    assert tab.inner_text("#tensors td.bad") == "1"
    assert "gpu1:77" in tab.inner_text("#tables")
    assert "left out: " in tab.inner_text("#notes")


@pytest.mark.slow
def test_the_address_bar_forgets_the_token_and_the_page_can_be_reloaded(page, tab):
    tab.goto(page.url)
    tab.wait_for_selector("#state.live")
    assert tab.url == f"http://127.0.0.1:{page.port}/"
    assert tab.reload().status == 200
    tab.wait_for_selector("#state.live")


@pytest.mark.slow
def test_figures_and_pictures_change_while_one_looks(page, feed, tab):
    tab.goto(page.url)
    tab.wait_for_selector("#samples figure")
    before, tile = tab.inner_text("#headline"), "document.querySelector('.tile').style.backgroundImage"
    picture = tab.evaluate(tile)
    tab.wait_for_function("before => document.querySelector('#headline').innerText !== before", arg=before)
    tab.wait_for_function(f"before => {tile} !== before", arg=picture)
    assert feed.peeks > 1


@pytest.mark.slow
def test_a_server_that_is_gone_is_shown_until_it_is_back(page, feed, tab):
    tab.goto(page.url)
    tab.wait_for_selector("#headline b")
    feed.failure = "no answer from tcp://cpu1:7880"
    tab.wait_for_selector("#error:not([hidden])")
    assert tab.inner_text("#error") == "no answer from tcp://cpu1:7880"
    assert tab.inner_text("#state.lost") == "no server answers"
    tab.wait_for_selector("#samples figure")  # the last batch stays, and does not make the page live
    assert tab.locator("#state.live, #headline b, #tables table, #stages .stage:visible").count() == 0
    assert tab.inner_text("#about") == tab.inner_text("#verdict") == ""
    feed.failure = None
    tab.wait_for_selector("#error", state="hidden")
    tab.wait_for_selector("#state.live")
    tab.wait_for_selector("#headline b")


def test_figures_of_a_server_that_is_gone_are_not_handed_out(page, feed):
    wait_until(lambda: page.content.figures().get("headline"), "figures")
    feed.failure = "no answer from tcp://cpu1:7880"
    wait_until(lambda: page.content.figures()["error"], "the next reading")
    assert page.content.figures().keys() == {"name", "error", "history"}
    wait_until(lambda: page.content.figures()["history"][-1][1:] == [None, None], "a gap in the charts")
    feed.failure = None
    wait_until(lambda: page.content.figures().get("headline"), "figures")


def test_a_server_that_does_not_answer_is_named_beside_the_figures_of_the_others(page, feed):
    feed.lost = [lost("tcp://cpu2:7880", None, 75)]
    wait_until(lambda: page.content.figures()["error"], "the next reading")
    wait_until(lambda: page.content.figures().get("headline"), "figures")
    assert page.content.figures()["error"] == "no answer from tcp://cpu2:7880 for 1 min 15 s"


@pytest.mark.slow
def test_a_page_is_not_live_while_a_server_is_lost(page, feed, tab):
    last = status(1, [worker(5, reading(1), client="gpu2:9")], url="tcp://cpu2:7880", server="b2")
    feed.lost = [lost("tcp://cpu2:7880", last, 75)]
    tab.goto(page.url)
    tab.wait_for_selector("#state.lost")
    tab.wait_for_selector("#tables td")
    assert tab.inner_text("#state") == "a server is lost"
    assert "lost for 1 min 15 s" in tab.inner_text("#tables")
    assert "gpu2:9" in tab.inner_text("#tables")
    feed.lost = []
    tab.wait_for_selector("#state.live")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways_in_the_users_colours(page, tab, scheme):
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(page.url)
    tab.wait_for_selector("#samples figure")
    tab.wait_for_selector("#tables td")
    wider = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText)"
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.eval_on_selector_all(".scroll, .scroll td", wider) == []
    assert (
        tab.eval_on_selector("#tables td", "one => getComputedStyle(one, '::before').content") == '"worker"'
    )
    red, green, blue = re.findall(r"\d+", tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (int(red) + int(green) + int(blue) < 380) == (scheme == "dark")


@pytest.mark.slow
def test_the_command_serves_a_feed_to_a_browser_until_it_is_interrupted(live_feed, tab):
    process = subprocess.Popen(
        [sys.executable, "-m", "mpwds", "show", live_feed, "--web"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        tab.goto(re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", process.stdout.readline())[0])
        tab.wait_for_selector("#samples figure")
        tab.wait_for_selector("#stages .stage")
        assert tab.locator("#samples figure").count() == 16
        assert "map(picture)" in tab.inner_text("#stages")
        tab.goto("about:blank")
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    assert (process.returncode, errors) == (130, "")
