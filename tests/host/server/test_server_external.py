"""Models that another OpenAI-compatible server answers for: one more of ours, and a double that does as it likes."""

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

openai = pytest.importorskip("openai")
pytest.importorskip("httpx2", reason="needs the extra server")

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]
KEY = "the-other-key-1234"
ALL = '["chat", "completion", "tools", "vision", "speech"]'


class Odd(BaseHTTPRequestHandler):
    """Answers as the model's name says."""

    protocol_version = "HTTP/1.1"
    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append({"path": self.path, "headers": dict(self.headers), **body})
        kind, _, rest = body["model"].partition("-")
        if kind == "uncounting" and "stream_options" in body:
            self.refuse(422, param="stream_options")
        elif kind == "status":
            self.refuse(int(rest))
        elif kind == "text":
            self.whole({"choices": [{"index": 0, "text": "only text", "message": {"content": "as it is"}}]})
        elif kind == "garbage":
            self.whole("nothing of the kind")
        elif kind == "hang":
            self.gone = self.rfile.read(1) == b""
            gone.set()
        else:
            self.stream(rest)

    def refuse(self, status: int, param: str = "temperature") -> None:
        said = {"error": {"message": f"no, {self.headers.get('authorization')}", "param": param, "code": "x"}}
        data = json.dumps(said).encode()
        self.send_response(status)
        for name, value in (("content-length", str(len(data))), ("retry-after", "7"), ("location", "/elsewhere")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def whole(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, end: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        first = {"choices": [{"index": 0, "delta": {"content": "half a\u2028line"}}]}
        self.wfile.write(f": hello\n\nevent: x\ndata: {json.dumps(first, ensure_ascii=False)}\r\n\r\n".encode())
        if end == "short":
            for text in (" b", " c"):
                chunk = {"choices": [{"index": 0, "delta": {"content": text}}]}
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
            self.wfile.write(f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode())
        elif end == "error":
            self.wfile.write(b'data: {"error": {"message": "it broke"}}\n\n')
        elif end == "calls":
            for piece in ('{"a"', ": 1}"):
                call = {"index": 0, "function": {"arguments": piece}}
                if piece.startswith("{"):
                    call |= {"id": "c9", "function": {"name": "look", "arguments": piece}}
                chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
            self.wfile.write(f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode())
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


gone = threading.Event()


@pytest.fixture(scope="module")
def odd() -> Iterator[Any]:
    Odd.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join(20)
    server.server_close()


@pytest.fixture(scope="module")
def other(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Another server of ours, which asks for a key."""
    keys = tmp_path_factory.mktemp("other") / "keys"
    keys.write_text(KEY)
    with start("--api-key-file", str(keys), "--grace", "0.2") as server:
        yield server


def entry(name: str, url: str, model: str, more: str = "", key: str = "") -> str:
    place = f'url = "{url}", model = "{model}"' + (f', key_variable = "{key}"' if key else "")
    return f"[models.{name}]\nexternal = {{ {place} }}\ncapabilities = {ALL}\n{more}\n"


@pytest.fixture(scope="module")
def front(start: Callable[..., Any], other: Any, odd: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The server that is asked, whose catalog leads to the others."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        there, double = f"{other.url}/v1", f"http://127.0.0.1:{odd.server_port}/v1"
        entries = [
            entry("far", there, "act:tokens=5", key="OTHER_KEY"),
            entry(
                "brief", there, "act:tokens=50", "max_tokens = 4\narguments = { temperature = 0.2 }", key="OTHER_KEY"
            ),
            entry("slow", there, "act:tokens=10000,pace=0.01", key="OTHER_KEY"),
            entry("held", there, "act:hold=1", key="OTHER_KEY"),
            entry("calling", there, "act:calls=1", key="OTHER_KEY"),
            entry("dying", there, "act:tokens=9,dies=2,pace=0.01", key="OTHER_KEY"),
            entry("unloadable", there, "act:fail=BAD_MODEL_FILE", 'fallback = ["near"]', key="OTHER_KEY"),
            entry("keyless", there, "act:"),
            entry("unset", there, "act:", key="NOT_SET_ANYWHERE"),
            entry("nobody", nobody, "act:"),
            entry("leaning", nobody, "act:", 'fallback = ["broken"]'),
            f'[models.vectors]\nexternal = {{ url = "{there}", model = "act:", key_variable = "OTHER_KEY" }}\n'
            'capabilities = ["embeddings"]\n',
            '[models.near]\nsource = "act:tokens=1"\n',
            '[models.broken]\nsource = "act:fail=BAD_MODEL_FILE,tokens=7"\nfallback = ["far"]\n',
            *(
                entry(f"s{code}", double, f"status-{code}", key="OTHER_KEY")
                for code in (302, 400, 401, 404, 429, 500, 503)
            ),
            *(entry(name, double, f"stream-{name}") for name in ("cut", "error", "calls", "short")),
            entry("uncounting", double, "uncounting-short"),
            entry("text", double, "text-1", "context_size = 99\narguments = { top-k = 3 }"),
            *(entry(name, double, f"{name}-1") for name in ("garbage", "hang")),
        ]
        path = tmp_path_factory.mktemp("front") / "catalog.toml"
        path.write_text("\n".join(entries))
        with start("--catalog", str(path), "--named-only", "--grace", "0.3", OTHER_KEY=KEY, NO_PROXY="*") as server:
            yield server


@pytest.fixture(scope="module")
def create(front: Any) -> Any:
    return front.client().chat.completions.create


def ask(front: Any, model: str, **more: Any) -> tuple[int, Any]:
    return front.post(CHAT, {"model": model, "messages": MESSAGES, **more})


def test_an_answer_and_a_stream_come_from_the_other_server(front: Any, create: Any) -> None:
    whole = create(model="far", messages=MESSAGES)
    assert whole.model == "far"
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("t0 t1 t2 t3 t4 ", "stop")
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 5)
    assert whole.system_fingerprint == "actor-1.0.0-actor-1"
    chunks = list(create(model="far", messages=MESSAGES, stream=True, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].delta.content or "" for one in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert {one.model for one in chunks} == {"far"}
    listed = {one["id"]: one for one in front.get("/v1/models")["data"]}
    assert listed["far"]["state"] == "ready"
    assert "chat" in listed["far"]["kinds"]
    metrics = front.ask("GET", "/metrics")[2].decode()
    assert 'cartdeck_tokens_total{kind="completion",model="far"} 10' in metrics


def test_its_calls_are_told_with_their_stages_too(front: Any) -> None:
    ask(front, "s500")
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.request("GET", "/events")
    response = connection.getresponse()
    while response.readline() != b"event: calls\n":
        pass
    calls = json.loads(response.readline().removeprefix(b"data: "))
    connection.close()
    done = next(one for one in calls if one["state"] == "done")
    assert [stage for stage, _ in done["spans"]] == ["queue", "first", "tokens"]
    assert done["usage"]["completion_tokens"] > 0
    assert calls[-1]["state"] == "failed"


def test_defaults_and_limits_of_the_catalog_hold_there(front: Any, odd: Any) -> None:
    for more in ({}, {"max_tokens": 100}, {"max_completion_tokens": 9}):
        assert ask(front, "brief", **more)[1]["usage"]["completion_tokens"] == 4
    Odd.asked.clear()
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}
    ask(front, "text", seed=3, response_format=form, user="me", logit_bias=None)
    [sent] = Odd.asked
    assert (sent["seed"], sent["response_format"], sent["user"], sent["model"]) == (3, form, "me", "text-1")
    assert sent["top_k"] == 3
    assert not {"logit_bias", "max_tokens", "stream", "context_size"} & sent.keys()
    assert sent["headers"].get("Authorization") is None
    assert front.post("/v1/completions", {"model": "text", "prompt": ["a", "b"], "echo": True})[0] == 200
    assert sorted(one["prompt"] for one in Odd.asked[1:]) == ["a", "b"]  # at the same time
    assert Odd.asked[1]["max_tokens"] == 512


def test_what_a_server_does_not_count_is_estimated_and_said_to_be(front: Any, odd: Any) -> None:
    def usage(model: str) -> Any:
        chunks = client.chat.completions.create(
            model=model, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        return list(chunks)[-1].usage.model_dump(exclude_none=True)

    client = front.client()
    found = usage("short")
    assert (found["prompt_tokens"], found["completion_tokens"], found["is_estimate"]) == (2, 5, True)
    assert 'kind="completion",model="short"} 5.0' in front.ask("GET", "/metrics")[2].decode()
    Odd.asked.clear()
    assert usage("uncounting") == usage("uncounting") == found  # one that refuses to be asked for counts
    assert ["stream_options" in one for one in Odd.asked] == [True, False, False]
    assert ask(front, "text")[1]["usage"]["is_estimate"] is True
    assert "is_estimate" not in ask(front, "far")[1]["usage"]


def test_calls_of_tools_come_whole(create: Any) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    [choice] = create(model="calling", messages=MESSAGES, tools=tools).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.arguments == '{"x": 1}'
    chunks = list(create(model="calls", messages=MESSAGES, tools=tools, stream=True))
    [call] = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or ()]
    assert (call.id, call.function.name, call.function.arguments) == ("c9", "look", '{"a": 1}')
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_completions_vectors_and_recordings_come_from_there_too(front: Any) -> None:
    client = front.client()
    answer = client.completions.create(model="far", prompt=["a", "b"], max_tokens=2)
    assert [one.text for one in answer.choices] == ["t0 t1 ", "t0 t1 "]
    chunks = list(client.completions.create(model="far", prompt="a", stream=True))
    assert "".join(one.choices[0].text for one in chunks) == "t0 t1 t2 t3 t4 "
    vectors = client.embeddings.create(model="vectors", input=["one", "two words"])
    assert [one.embedding for one in vectors.data] == [pytest.approx([0.6, 0.0, 0.8])] * 2
    assert vectors.usage.prompt_tokens == 3
    heard = client.audio.transcriptions.create(model="far", file=("a.wav", b"sound"), response_format="verbose_json")
    assert (heard.text, heard.duration, len(heard.segments)) == ("transcribe 5 bytes", 2.5, 2)
    assert (heard.segments[1].seek, heard.segments[1].tokens, heard.segments[1].no_speech_prob) == (
        50,
        [50364, 7],
        0.125,
    )
    stream = list(client.audio.transcriptions.create(model="far", file=("a.wav", b"sound"), stream=True))
    assert stream[-1].text == "transcribe 5 bytes"


def test_a_client_that_leaves_is_gone_there_too(front: Any, other: Any, create: Any) -> None:
    def open_calls() -> Any:
        told = other.ask("GET", "/stats", authorization=f"Bearer {KEY}")[2]
        return [one["requests"] for one in json.loads(told)["sessions"] if "pace=0.01" in one["instance"]]

    stream = create(model="slow", messages=MESSAGES, max_tokens=10_000, stream=True)
    next(iter(stream))
    other.wait_for(lambda: any(any(one.values()) for one in open_calls()))
    stream.close()
    other.wait_for(lambda: not any(any(one.values()) for one in open_calls()))
    connection = front.send(CHAT, {"model": "hang", "messages": MESSAGES})
    front.wait_for(lambda: any(one["model"] == "hang-1" for one in Odd.asked))
    connection.close()
    assert gone.wait(20)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("model", "status", "code", "words"),
    [
        ("keyless", 502, "AUTH_REQUIRED", "without a key"),
        ("unset", 502, "AUTH_REQUIRED", "NOT_SET_ANYWHERE, which is not set"),
        ("nobody", 502, "ENDPOINT_UNREACHABLE", "cannot be reached"),
        ("s302", 502, "ENDPOINT_UNREACHABLE", "elsewhere"),
        ("s400", 400, "BAD_ARGUMENT", "refuses the request: no"),
        ("s401", 502, "AUTH_REQUIRED", "the key in OTHER_KEY"),
        ("s404", 404, "MODEL_NOT_FOUND", "status-404"),
        ("s429", 503, "RATE_LIMITED", "no more requests"),
        ("s500", 502, "ENDPOINT_UNREACHABLE", "fails with 500"),
        ("s503", 503, "ENDPOINT_UNREACHABLE", "fails with 503"),
        ("garbage", 502, "ENDPOINT_UNREACHABLE", "none of OpenAI's"),
    ],
)
def test_an_error_there_says_whose_it_is(
    front: Any, model: str, status: int, code: str, words: str, is_streamed: bool
) -> None:
    found, headers, data = front.ask("POST", CHAT, {"model": model, "messages": MESSAGES, "stream": is_streamed})
    error = json.loads(data)["error"]
    assert (found, error["code"]) == (status, code), error
    assert words in error["message"]
    assert error["phase"] == "external"
    assert error["param"] == {"s400": "temperature", "s404": "model"}.get(model)
    assert headers.get("retry-after") == ("7" if status == 503 else None)
    assert KEY not in data.decode()


@pytest.mark.parametrize(
    ("model", "words"), [("cut", "broke its answer off"), ("error", "it broke"), ("dying", "exited")]
)
def test_a_stream_that_breaks_there_ends_with_an_error_here(create: Any, model: str, words: str) -> None:
    heard: list[str] = []
    with pytest.raises(openai.APIError, match=words) as caught:
        heard.extend(one.choices[0].delta.content or "" for one in create(model=model, messages=MESSAGES, stream=True))
    assert caught.value.code == "ENDPOINT_UNREACHABLE"
    assert "".join(heard) == ("t0 t1 " if model == "dying" else "half a\u2028line")


def test_a_model_that_cannot_answer_has_a_stand_in_here_or_there(front: Any, create: Any) -> None:
    for model, stand_in, text in (
        ("unloadable", "near", "t0 "),
        ("broken", "far", "t0 t1 t2 t3 t4 "),
        ("leaning", None, ""),
    ):
        status, answer = ask(front, model)
        if stand_in is None:  # it has one that fails too
            assert answer["error"]["code"] == "BAD_MODEL_FILE"
            continue
        assert (status, answer["stood_in"]) == (200, {"for": model, "model": stand_in})
        chunks = list(create(model=model, messages=MESSAGES, stream=True))
        assert "".join(one.choices[0].delta.content or "" for one in chunks) == text


def test_two_servers_that_name_each_other_do_not_ask_for_ever_and_one_that_stops_ends_what_others_answer(
    start: Callable[..., Any], odd: Any, tmp_path: Path, rewrite: Callable[[Path, str], None]
) -> None:
    path = tmp_path / "catalog.toml"
    hang = entry("hang", f"http://127.0.0.1:{odd.server_port}/v1", "hang-2")
    path.write_text(hang)
    with start("--catalog", str(path), "--grace", "0.2") as server:
        rewrite(path, entry("round", f"{server.url}/v1", "round") + hang)  # its port is known now
        server.wait_for(lambda: ask(server, "round")[0] != 404)
        status, answer = ask(server, "round")
        assert status == 400
        assert "pass the request on to each other" in answer["error"]["message"]
        connection = server.send(CHAT, {"model": "hang", "messages": MESSAGES})
        server.wait_for(lambda: any(one["model"] == "hang-2" for one in Odd.asked))
        server.stop()
        assert b"ABORTED" in b"".join(iter(lambda: connection.recv(65536), b""))
        connection.close()
        code, log = server.end()
    assert code == 0
    assert "Traceback" not in log
