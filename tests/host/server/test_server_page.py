"""The page's files, and what a page is told while it is open: states, calls with their stages, logs."""

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cartdeck.server.page_endpoints import FOLDER

ASKED = {"model": "act:tokens=2", "messages": [{"role": "user", "content": "Hello"}]}
CHAT = "/v1/chat/completions"
LINKS = re.compile(r'(?:src|href)="([^"#]+)"')


class Told:
    """What a reader of /events hears: the states by kind, the calls by number, the lines of a log."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response
        self.states: dict[str, dict[str, Any]] = {}
        self.calls: dict[int, dict[str, Any]] = {}
        self.lines: list[list[Any]] = []

    def read_until(self, condition: Any) -> None:
        """Events until `condition()`, for 30 s at most."""
        name, began_s = "", time.monotonic()
        while not condition():
            assert time.monotonic() - began_s < 30, self.calls
            line = self.response.readline().decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                self._take(name, json.loads(line[6:]))

    def _take(self, name: str, data: Any) -> None:
        if name == "state":
            for kind in ("server", "cartridges", "sessions", "models"):
                self.states.setdefault(kind, {}).update(data.get(kind, {}))
            for kind, key in data.get("gone", []):
                del self.states[kind][key]
        elif name == "calls":
            self.calls.update({one["number"]: one for one in data})
        elif name == "log":
            self.lines += data["lines"]

    def last_call(self, name: str = "") -> dict[str, Any]:
        """The latest call, or the latest of that model or cap; {} for none."""
        found = [one for one in self.calls.values() if not name or name in (one["model"], one["cap"])]
        return max(found, key=lambda one: one["number"], default={})

    def read_until_ended(self, name: str) -> dict[str, Any]:
        self.read_until(lambda: self.last_call(name).get("state", "open") != "open")
        return self.last_call(name)


@contextmanager
def told_by(server: Any, query: str = "") -> Iterator[Told]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", f"/events{query}")
    response = connection.getresponse()
    assert (response.status, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    try:
        yield Told(response)
    finally:
        connection.close()


def test_the_page_and_all_that_it_names_is_there_and_nothing_from_elsewhere(server: Any) -> None:
    status, headers, body = server.ask("GET", "/")
    assert status == 200
    policy = headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "connect-src 'self'", "require-trusted-types-for 'script'"):
        assert rule in policy
    assert "unsafe" not in policy
    named = LINKS.findall(body.decode())
    assert len(named) > 5
    for path in named:
        assert server.ask("GET", f"/{path}")[0] == 200
    texts = {path: path.read_text("utf-8") for path in FOLDER.rglob("*") if path.suffix in (".js", ".css", ".html")}
    for path, text in texts.items():
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), path
        assert len(text.splitlines()) < 300, path


def test_every_script_that_is_imported_is_there_and_none_is_left_over() -> None:
    scripts = {path.resolve() for path in (FOLDER / "js").rglob("*.js")}
    imported = {
        (path.parent / name).resolve()
        for path in scripts
        for name in re.findall(r'^import .*? from "(.+?)";$', path.read_text("utf-8"), re.MULTILINE)
    }
    page = (FOLDER / "index.html").read_text("utf-8")
    imported |= {
        (FOLDER / name.removeprefix("page/")).resolve() for name in LINKS.findall(page) if name.endswith(".js")
    }
    assert imported == scripts


def test_a_file_that_has_not_changed_is_not_sent_again(server: Any) -> None:
    _, headers, _ = server.ask("GET", "/page/js/main.js")
    assert (headers["cache-control"], headers["content-type"]) == ("no-cache", "text/javascript; charset=utf-8")
    status, again, body = server.ask("GET", "/page/js/main.js", if_none_match=f'"other", W/{headers["etag"]}')
    assert (status, body, again["etag"]) == (304, b"", headers["etag"])
    assert server.ask("GET", "/page/js/main.js", if_none_match='"other"')[0] == 200


@pytest.mark.parametrize("name", ["README.md", "../app.py", "%2e%2e/app.py", "js", "js/none.js", ""])
def test_only_the_files_of_the_page_are_served(server: Any, name: str) -> None:
    status, _, body = server.ask("GET", f"/page/{name}")
    assert (status, json.loads(body)["error"]["code"]) == (404, "NO_SUCH_PATH")


def test_the_page_needs_no_key_and_what_it_shows_does(start: Any, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a-key-of-ours\n")
    with start("--api-key-file", str(tmp_path / "keys"), "--grace", "0.2") as server:
        assert [server.ask("GET", path)[0] for path in ("/", "/page/js/main.js", "/page/../stats")] == [200, 200, 404]
        assert [server.ask("GET", path)[0] for path in ("/events", "/stats")] == [401, 401]
        assert server.ask("POST", "/plans/show", {"plan": ""})[0] == 401


def test_the_servers_own_page_may_ask_and_one_under_a_strange_name_may_not(server: Any) -> None:
    host = f"127.0.0.1:{server.port}"
    assert server.ask("POST", CHAT, ASKED, origin=f"http://{host}")[0] == 200
    for origin in (f"http://127.0.0.1:{server.port + 1}", "http://page.example", "null"):
        assert server.ask("POST", CHAT, ASKED, origin=origin)[0] == 403
    rebound = f"page.example:{server.port}"
    status, _, body = server.ask("POST", CHAT, ASKED, origin=f"http://{rebound}", host=rebound)
    assert (status, json.loads(body)["error"]["code"]) == (403, "FORBIDDEN_HOST")


def test_a_page_is_told_how_all_is_and_then_what_changes(server: Any) -> None:
    with told_by(server) as told:
        told.read_until(lambda: told.states)
        assert told.states["cartridges"]["actor"]["is_available"]
        assert told.states["models"]["named"]["spec"] == "act:tokens=2"
        assert told.states["server"][""]["memory"]["waiting"] == 0
        server.post(CHAT, {**ASKED, "model": "named"})
        call = told.read_until_ended("named")
        assert (call["state"], call["model"], call["cap"], call["cartridge"]) == ("done", "named", "chat", "actor")
        assert call["usage"] == {"prompt_tokens": 5, "completion_tokens": 2}
        told.read_until(lambda: told.states["models"]["named"]["state"] == "ready")
        session = next(one for one in told.states["sessions"].values() if "act:tokens=2" in one["instance"])
        assert (session["state"], session["restarts"]) == ("ready", 0)


def test_a_calls_stages_are_told_while_it_goes_on(server: Any) -> None:
    model = "act:obtain=2,load=2,prompt=0.5,tokens=4,pace=0.1"
    seen: set[str] = set()

    def is_over() -> bool:
        call = told.last_call(model)
        if call:
            seen.add(call["spans"][-1][0])
        return call.get("state", "open") != "open"

    with told_by(server) as told:
        asking = threading.Thread(target=server.post, args=(CHAT, {**ASKED, "model": model}))
        asking.start()
        told.read_until(is_over)
        asking.join(30)
    spans = told.last_call(model)["spans"]
    assert [stage for stage, _ in spans if stage != "first"] == ["queue", "obtain", "load", "tokens"]
    times = dict(spans)
    assert times["load"] - times["obtain"] >= 0.5
    assert times["tokens"] - times["load"] >= 0.8
    assert told.last_call(model)["now_s"] > times["tokens"]
    assert {"obtain", "load"} <= seen


def test_a_call_that_fails_is_told_with_its_remedy(server: Any) -> None:
    with told_by(server) as told:
        server.post(CHAT, {**ASKED, "model": "act:fail=HASH_MISMATCH"})
        call = told.read_until_ended("act:fail=HASH_MISMATCH")
    assert (call["state"], call["error"]["code"]) == ("failed", "HASH_MISMATCH")
    assert call["error"]["remedy"]


def test_a_plan_is_a_call_of_its_own_and_a_client_that_leaves_is_told(server: Any) -> None:
    with told_by(server) as told:
        server.post("/plans/run", {"plan": "words -> echo -> copied", "inputs": {"words": "a"}, "stream": False})
        call = told.read_until_ended("plan")
        assert (call["state"], [stage for stage, _ in call["spans"]]) == ("done", ["plan"])
        connection = server.send(CHAT, {**ASKED, "model": "act:hold=1", "stream": True})
        told.read_until(lambda: told.last_call("act:hold=1"))
        connection.close()
        assert told.read_until_ended("act:hold=1")["state"] == "cancelled"


def test_the_log_of_a_cartridge_is_told_to_who_asks_for_it(server: Any) -> None:
    def misbehave(**arguments: Any) -> None:
        server.post("/caps/call", {"cap": "misbehave", "arguments": arguments, "stream": False})

    misbehave(action="log-lines", amount=2500)
    with told_by(server, "?log=echo") as told, told_by(server) as other:
        told.read_until(lambda: len(told.lines) >= 2000)
        assert [line[4] for line in told.lines] == [f"line {number}" for number in range(500, 2500)]
        misbehave(action="flood-stderr", amount=8192)
        told.read_until(lambda: told.lines[-1][2].startswith("pid "))
        assert told.lines[-1][3] == "stderr"
        other.read_until(lambda: other.last_call("misbehave"))
    assert other.lines == []


def test_a_plan_is_shown_as_boxes_and_a_bad_one_is_refused_with_its_place(server: Any) -> None:
    status, shown = server.post("/plans/show", {"plan": "words -> echo -> copied\ncopied -> sink -> size"})
    assert status == 200
    names = [box["name"] for box in shown["boxes"]]
    assert names == ["value words", "step echo", "step sink", "value size"]
    assert [wire["name"] for wire in shown["wires"]] == ["", "copied", ""]
    assert (shown["inputs"][0]["name"], shown["outputs"][0]["name"]) == ("words", "size")
    status, refused = server.post("/plans/show", {"plan": "words -> ecko -> copied"})
    assert (status, refused["error"]["code"]) == (404, "NO_SUCH_CAP")
    assert "line 1" in refused["error"]["message"]


def test_a_server_that_ends_lets_its_pages_go(start: Any) -> None:
    with start("--grace", "20") as server, told_by(server) as told:
        told.read_until(lambda: told.states)
        server.stop()
        assert server.end()[0] == 0
