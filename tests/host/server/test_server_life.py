"""A server's beginning and end; who may ask; what it says of itself."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

openai = pytest.importorskip("openai")
CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"


def cartdeck(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CARTDECK, *arguments], capture_output=True, text=True, timeout=60, check=False)


def refused(*options: str) -> tuple[int, dict[str, Any]]:
    """A server that does not begin: its exit code and its error."""
    done = subprocess.run(
        [CARTDECK, "serve", "--json", *options], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, json.loads(done.stdout)["error"]


def test_it_does_not_listen_wider_without_a_key(tmp_path: Path) -> None:
    code, error = refused("--host", "0.0.0.0", "--port", "0")
    assert (code, error["argument"]) == (2, "--host")
    assert "--api-key-file" in error["message"]
    for text in ("", "# nothing\n", "short\n", "schlüssel-1234\n", "first\tkey-1234\n"):
        (tmp_path / "keys").write_text(text, "utf-8")
        assert refused("--api-key-file", str(tmp_path / "keys"))[1]["argument"] == "--api-key-file"
    assert refused("--api-key-file", str(tmp_path / "none"))[1]["code"] == "FILE_NOT_FOUND"


def test_a_port_in_use_is_said_to_be(server: Any) -> None:
    code, error = refused("--port", str(server.port))
    assert (code, error["argument"]) == (2, "--port")
    assert "in use" in error["message"]


def test_a_wrong_host_and_a_wrong_name_are_refused() -> None:
    assert refused("--host", "127.0.0.1.nowhere.invalid", "--api-key-file", "/dev/null")[0] == 2
    assert refused("--port", "0", "--model", "no spec")[1]["argument"] == "--model"


def test_a_key_is_asked_for_and_not_for_health(start: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\ufefffirst-key-1234\r\n# ours\nsecond-key-1234\n", "utf-8")
    with start("--host", "0.0.0.0", "--api-key-file", str(keys), "--grace", "0.2", "--model", "a=act:") as server:
        for wrong in ("none", "first-key-123", ""):
            status, headers, data = server.ask("GET", "/v1/models", authorization=f"Bearer {wrong}")
            assert (status, json.loads(data)["error"]["code"]) == (401, "INVALID_API_KEY")
            assert headers["www-authenticate"] == "Bearer"
        with pytest.raises(openai.AuthenticationError):
            server.client(api_key="wrong").models.list()
        for key in ("first-key-1234", "second-key-1234"):
            answer = server.client(api_key=key).chat.completions.create(model="a", messages=MESSAGES)
            assert answer.choices[0].message.content == "t0 t1 t2 "
        assert server.ask("GET", "/healthz")[0] == 200
        assert server.ask("GET", "/readyz")[0] == 200
        assert server.ask("GET", "/metrics")[0] == 401


def test_web_pages_may_not_ask_unless_they_are_let(server: Any, start: Any) -> None:
    asked = {"model": "act:tokens=1", "messages": MESSAGES}
    assert server.ask("POST", CHAT, asked, origin="https://page.example")[0] == 403
    assert server.ask("GET", "/v1/models", host="page.example")[0] == 403
    for name in ("127.0.0.1:80:page.example", "[::1]page.example", "127.0.0.1.page.example", "localhost@page.example"):
        assert server.ask("GET", "/v1/models", host=name)[0] == 403
    for name in ("localhost:1", "127.0.0.1", "[::1]:80", "app.localhost"):
        assert server.ask("GET", "/v1/models", host=name)[0] == 200
    options = ("--allow-origin", "https://page.example", "--allow-host", "Page.example", "--grace", "0.2")
    with start(*options) as open_server:
        status, headers, _ = open_server.ask("POST", CHAT, asked, origin="https://page.example", host="page.example")
        assert (status, headers["access-control-allow-origin"]) == (200, "https://page.example")
        assert open_server.ask("POST", CHAT, asked, origin="https://other.example")[0] == 403
        preflight = {"origin": "https://page.example", "access_control_request_method": "POST"}
        assert open_server.ask("OPTIONS", CHAT, None, **preflight)[0] == 200


def test_only_named_models_are_taken_where_that_is_said(start: Any) -> None:
    with start("--named-only", "--model", "a=act:tokens=1", "--grace", "0.2") as server:
        assert server.post(CHAT, {"model": "a", "messages": MESSAGES})[0] == 200
        assert server.post(CHAT, {"model": "act:tokens=1", "messages": MESSAGES})[0] == 404
        assert "a" in [one["id"] for one in server.get("/v1/models")["data"]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_open_requests_end_and_then_ends_the_server(start: Any, number: signal.Signals) -> None:
    with start("--grace", "20") as server:
        model = "act:tokens=30,pace=0.05"
        stream = server.client().chat.completions.create(model=model, messages=MESSAGES, stream=True)
        next(iter(stream))
        server.stop(number)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text.endswith("t29 ")
        code, log = server.end()
        assert code == 0
        assert "Traceback" not in log


def test_what_outlasts_the_grace_ends_with_an_error_that_says_so(start: Any) -> None:
    with start("--grace", "0.3") as server:
        stream = server.client().chat.completions.create(model="act:hold=1", messages=MESSAGES, stream=True)
        next(iter(stream))
        server.stop(signal.SIGTERM)
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "ABORTED"
        assert caught.value.body["remedy"] == "Send the request again when the server has been started again."
        code, log = server.end()
        assert code == 0
        assert '"grace_s": 0.3' in log
        assert "Traceback" not in log


def test_a_server_that_stops_takes_no_new_request(start: Any) -> None:
    with start("--grace", "20") as server:
        stream = server.client().chat.completions.create(model="act:hold=1", messages=MESSAGES, stream=True)
        next(iter(stream))
        server.stop(signal.SIGTERM)

        def is_shut() -> bool:
            try:
                return server.ask("POST", CHAT, {"model": "act:", "messages": MESSAGES})[0] == 503
            except OSError:
                return True

        server.wait_for(is_shut)
        stream.close()
        assert server.end()[0] == 0


def test_a_signal_while_a_model_loads_ends_the_load_and_leaves_no_process(start: Any) -> None:
    with start("--grace", "0.2") as server:
        with server.send(CHAT, {"model": "act:load=600", "messages": MESSAGES}) as connection:
            server.wait_for(lambda: server.open_calls("act:load=600") == {"load": 1})
            started = [one["pid"] for one in server.get("/stats")["sessions"] if one["pid"]]
            server.stop(signal.SIGINT)
            assert b"ABORTED" in b"".join(iter(lambda: connection.recv(65536), b""))
        code, log = server.end()
    assert code == 0
    assert "Traceback" not in log
    assert started
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


def test_a_second_signal_ends_it_at_once(start: Any) -> None:
    with start("--grace", "100") as server:
        connection = server.send(CHAT, {"model": "act:hold=1", "messages": MESSAGES, "stream": True})
        assert connection.recv(20).startswith(b"HTTP/1.1 200")
        server.stop(signal.SIGTERM)
        assert server.process.stderr is not None
        lines = iter(server.process.stderr.readline, "")
        assert any('"stopping"' in line for line in lines)
        server.stop(signal.SIGTERM)
        assert server.process.wait(20) == 143
        connection.close()


def test_the_log_is_a_line_of_json_for_each_request(start: Any) -> None:
    with start("--grace", "0.2") as server:
        server.ask("GET", "/healthz")
        server.ask("GET", "/nothing")
        _, log = server.end()
    records = [json.loads(line) for line in log.splitlines()]
    assert [(one["path"], one["status"]) for one in records if one["event"] == "request"] == [
        ("/healthz", 200),
        ("/nothing", 404),
    ]


def test_a_log_that_nobody_reads_holds_nobody_up_and_tells_what_was_dropped(start: Any) -> None:
    with start("--grace", "0.2") as server:
        path = "/" + "x" * 8000
        for _ in range(600):  # more than a pipe and the queue behind it hold
            assert server.ask("GET", path)[0] == 404
        code, log = server.end()
    assert code == 0
    records = [json.loads(line) for line in log.splitlines()]
    [dropped] = [one["lines"] for one in records if one["event"] == "dropped"]
    assert dropped > 0
    assert sum(one["event"] == "request" for one in records) + dropped == 600


def test_the_models_that_have_a_name_are_listed(client: Any) -> None:
    models = {model.id: model for model in client.models.list()}
    assert models["named"].owned_by == "cartdeck"
    assert client.models.retrieve("named").id == "named"
    assert client.models.retrieve("act:x/y=1").id == "act:x/y=1"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_a_server_says_what_it_has(server: Any) -> None:
    serving = [one for cap in server.get("/caps")["caps"] if cap["alias"] == "chat" for one in cap["cartridges"]]
    assert {"name": "actor", "is_available": True} in serving
    assert "actor" in [one["name"] for one in server.get("/cartridges")["cartridges"]]
    described = server.get("/openapi.json")
    assert described["openapi"].startswith("3.1")
    assert {CHAT, "/v1/embeddings", "/caps/call", "/plans/run"} <= described["paths"].keys()
    text = json.dumps(described)
    names = re.findall(r'"#/components/schemas/(\w+)"', text)
    assert names
    assert set(names) <= described["components"]["schemas"].keys()


def test_figures_count_what_went_by(server: Any, client: Any) -> None:
    list(client.chat.completions.create(model="named", messages=MESSAGES, stream=True))
    text = server.ask("GET", "/metrics")[2].decode()
    for figure in (
        'cartdeck_first_token_seconds_count{model="named"}',
        'cartdeck_tokens_total{kind="completion",model="named"}',
        'cartdeck_tokens_per_second_count{model="named"}',
        'cartdeck_starts_total{cartridge="actor"}',
        'cartdeck_restarts_total{cartridge="actor"}',
        'cartdeck_rss_bytes{cartridge="actor"}',
        "cartdeck_queue",
        "cartdeck_http_sent_bytes_total",
    ):
        assert re.search(rf"^{re.escape(figure)} [0-9.e+]+$", text, re.MULTILINE), figure


def test_top_shows_a_running_server(server: Any, client: Any) -> None:
    client.chat.completions.create(model="named", messages=MESSAGES)
    done = subprocess.run(
        [CARTDECK, "top", server.url, "--once"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    heads = ["cartridge", "state", "class", "pid", "requests", "memory", "starts", "restarts"]
    assert heads in [line.split() for line in done.stdout.splitlines()]  # of 80 columns, none is cut or folded
    assert re.search("^actor +ready +standard ", done.stdout, re.MULTILINE)
    record = subprocess.run(
        [CARTDECK, "top", server.url, "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    assert json.loads(record.stdout)["models"]["named"]["state"] == "ready"


def test_top_says_that_nobody_is_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = cartdeck("top", url, "--once")
    assert done.returncode == 6
    assert "ENDPOINT_UNREACHABLE" in done.stderr
    assert "`cartdeck serve` starts one" in " ".join(done.stderr.split())
