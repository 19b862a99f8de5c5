"""Requests that are wrong, and calls that fail: each has a status, and an error object that names what is wrong."""

import asyncio
import contextlib
import gc
import gzip
import json
import socket
from typing import Any

import pytest

from cartdeck.server.openai_api.text_request import FIELD_NAMES
from cartdeck.server.refusal import named_as
from cartdeck_protocol.errors import CartdeckError, Code, failure

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]
GOOD = json.dumps({"model": "named", "messages": MESSAGES}).encode()


@pytest.mark.parametrize(
    "body",
    [
        GOOD[:-10],
        b"\xef\xbb\xbf" + GOOD,
        b'{"model": "named", "messages": [{"role": "user", "content": "\xe9"}]}',
        b'{"model": "named", "temperature": NaN, "messages": []}',
        b'{"model": "named", "temperature": 1e999, "messages": [{"role": "user", "content": "x"}]}',
        b"[" * 10_000 + b"]" * 10_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b"",
        b"[]",
        b'"text"',
        b"\x00\xff",
    ],
    ids=[
        "truncated",
        "bom",
        "latin-1",
        "nan",
        "infinity",
        "deep-list",
        "deep-record",
        "empty",
        "list",
        "text",
        "bytes",
    ],
)
def test_a_bad_body_is_a_400_with_an_error_object(server: Any, body: bytes) -> None:
    status, headers, data = server.ask("POST", CHAT, body)
    told = json.loads(data)["error"]
    assert status == 400
    assert headers["content-type"] == "application/json"
    assert told["message"]
    assert told["code"]
    assert told["type"] == "invalid_request_error"
    assert server.ask("POST", CHAT, GOOD)[0] == 200


def test_a_body_of_50_megabytes_is_a_413_and_the_server_lives(server: Any) -> None:
    status, _, data = server.ask("POST", CHAT, b'{"model": "' + b"x" * 50_000_000 + b'"}')
    assert (status, json.loads(data)["error"]["code"]) == (413, "TOO_LARGE")
    assert server.ask("POST", CHAT, GOOD)[0] == 200


def test_a_length_beyond_all_patience_is_refused_before_it_comes(server: Any) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000000\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_body_in_chunks_is_bounded_too(server: Any) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        for _ in range(33):
            connection.sendall(piece)
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_head_without_end_is_refused(server: Any) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        heard = b""
        with contextlib.suppress(OSError):  # it is closed before all has come, or reset while some was not read
            for _ in range(100):
                connection.sendall(b"a" * 65536)
        with contextlib.suppress(OSError):
            heard = connection.recv(100)
        assert not heard or heard.startswith(b"HTTP/1.1 431")
    assert server.ask("GET", "/healthz")[0] == 200


def heard_by_limits(limits: dict[str, Any], *sent: bytes) -> list[bytes]:
    """What a server in this process, with those limits of requests, answers on a connection for each of `sent`."""
    from cartdeck.engine import Engine
    from cartdeck.server.listening import HttpServer, listen
    from cartdeck.server.models.directory import SpecDirectory
    from cartdeck.server.options import RequestLimits, ServerOptions

    async def work() -> list[bytes]:
        options = ServerOptions(port=0, grace_s=0.1, limits=RequestLimits(**limits))
        listener = listen(options)
        async with Engine() as engine:
            server = HttpServer(engine, SpecDirectory(engine.router), options)
            ready = asyncio.Event()
            running = asyncio.create_task(server.run(listener, on_ready=ready.set))
            await ready.wait()
            port = listener.getsockname()[1]
            said: list[bytes] = []
            for begun in sent:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(begun)
                said.append(await asyncio.wait_for(reader.read(), 20))
                writer.close()
            server.stop()
            await asyncio.wait_for(running, 20)
        return said

    found = asyncio.run(work())
    gc.unfreeze()  # what a server does with its own process
    return found


def test_a_head_that_does_not_come_is_not_waited_for() -> None:
    sent = (b"GET / HTT", b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he")
    slow, silent, second = heard_by_limits({"head_s": 0.3}, *sent)
    assert slow.startswith(b"HTTP/1.1 408")
    assert b"SLOW_HEAD" in slow
    assert silent == b""
    assert second.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in second


def test_a_body_before_the_next_head_does_not_count_as_one() -> None:
    head = b"POST /v1/nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n"
    (heard,) = heard_by_limits(
        {"head_bytes": 1000, "head_s": 0.3}, head + bytes(20_000) + b"GET /healthz HTTP/1.1\r\nHo"
    )
    assert heard.startswith(b"HTTP/1.1 404")
    assert b" 431 " not in heard
    assert b"HTTP/1.1 408" in heard  # the second head, for which it waited


def test_a_packed_body_is_refused_for_what_it_is(server: Any) -> None:
    packed = gzip.compress(GOOD)
    status, _, data = server.ask("POST", CHAT, packed, content_encoding="gzip")
    told = json.loads(data)["error"]
    assert (status, told["code"]) == (415, "WRONG_MEDIA_TYPE")
    assert "encoded as gzip" in told["message"]
    assert server.ask("POST", CHAT, GOOD, content_encoding="identity")[0] == 200


def test_a_form_is_not_taken_for_json(server: Any) -> None:
    status, _, data = server.ask("POST", CHAT, GOOD, content_type="text/plain")
    assert (status, "header Content-Type: application/json" in json.loads(data)["error"]["message"]) == (415, True)
    status, _, data = server.ask("POST", "/v1/audio/transcriptions", GOOD, content_type="")
    assert (status, "no header Content-Type" in json.loads(data)["error"]["message"]) == (415, True)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", CHAT, 405),
        ("POST", "/v1/images/generations", 501),
        ("POST", "/v1/images/edits", 501),
        ("POST", "/v1/audio/speech", 501),
        ("GET", "/v1/models/nothing", 404),
    ],
)
def test_a_path_that_is_not_served_says_so(server: Any, method: str, path: str, status: int) -> None:
    found, _, data = server.ask(method, path, {} if method == "POST" else None)
    assert found == status
    assert json.loads(data)["error"]["message"]


def test_a_model_that_is_not_there_is_a_404_that_lists_near_ones(server: Any, client: Any) -> None:
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.NotFoundError, match="named") as caught:
        client.chat.completions.create(model="name", messages=MESSAGES)
    assert caught.value.code == "MODEL_NOT_FOUND"
    assert caught.value.param == "model"


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize(
    ("code", "status", "retry"),
    [
        ("BAD_MODEL_FILE", 400, None),
        ("MODEL_NOT_FOUND", 404, None),
        ("OUT_OF_MEMORY", 500, "no"),
        ("ENDPOINT_UNREACHABLE", 502, "no"),
        ("HANDLER_FAILED", 500, "no"),
        ("LOCK_TIMEOUT", 503, "yes"),
        ("STALLED", 504, "no"),
    ],
)
def test_a_load_that_fails_at_once_has_its_own_status(
    server: Any, code: str, status: int, retry: str | None, is_streamed: bool
) -> None:
    asked = {"model": f"act:fail={code}", "messages": MESSAGES, "stream": is_streamed}
    found, headers, data = server.ask("POST", CHAT, asked)
    told = json.loads(data)["error"]
    assert (found, told["code"], told["phase"]) == (status, code, "load")
    assert ("retry-after" in headers) == (retry == "yes")
    assert headers.get("x-should-retry") == ("false" if retry == "no" else None)
    assert server.get(f"/v1/models/act:fail={code}")["state"] == "failed"


def test_a_load_that_fails_late_is_an_error_event_and_the_model_has_failed(talkative: Any) -> None:
    openai = pytest.importorskip("openai")
    model = "act:load=1,fail=BAD_MODEL_FILE"
    with pytest.raises(openai.APIError, match="the script says so") as caught:
        list(talkative.client().chat.completions.create(model=model, messages=MESSAGES, stream=True))
    assert caught.value.code == "BAD_MODEL_FILE"
    state = talkative.get(f"/v1/models/{model}")
    assert (state["state"], state["error"]["code"]) == ("failed", "BAD_MODEL_FILE")


def test_an_error_event_is_one_of_the_stream_and_its_end(talkative: Any) -> None:
    asked = {"model": "act:load=1,fail=OUT_OF_MEMORY,x=1", "messages": MESSAGES, "stream": True}
    status, _, data = talkative.ask("POST", CHAT, asked)
    assert status == 200
    *_, last = data.decode().strip().split("\n\n")
    name, _, told = last.partition("\n")
    assert name == "event: error"
    assert json.loads(told.removeprefix("data: "))["error"]["code"] == "OUT_OF_MEMORY"
    assert b"[DONE]" not in data


def test_a_process_that_dies_under_a_stream_is_an_error_event_and_the_next_request_works(server: Any) -> None:
    openai = pytest.importorskip("openai")
    stream = server.client().chat.completions.create(
        model="act:tokens=9,dies=2,pace=0.01", messages=MESSAGES, stream=True
    )
    heard: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        heard.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert caught.value.code == "CARTRIDGE_DIED"
    assert "".join(heard) == "t0 t1 "
    again = server.client().chat.completions.create(
        model="act:tokens=9,dies=2,pace=0.01", messages=MESSAGES, max_tokens=2
    )
    assert again.choices[0].message.content == "t0 t1 "


def test_silent_streams_say_something_while_a_model_loads(talkative: Any) -> None:
    def heard_until(wanted: bytes, *, times: int, load_s: int) -> bytes:
        model = f"act:load={load_s},tokens=1"
        heard = b""
        with talkative.send(CHAT, {"model": model, "messages": MESSAGES, "stream": True}) as connection:
            while heard.count(wanted) < times:
                piece = connection.recv(65536)
                assert piece, heard
                heard += piece
        return heard

    assert b"data: " not in heard_until(b": waiting\n\n", times=5, load_s=600)
    heard = heard_until(b"[DONE]", times=1, load_s=3)
    assert heard.count(b": waiting\n\n") >= 3
    assert heard.index(b": waiting") < heard.index(b"data: ")


def test_a_full_queue_is_a_503_that_says_when_to_come_again(start: Any) -> None:
    with start("--max-requests", "2", "--grace", "0.2") as server:
        asked = {"model": "act:tokens=1000,pace=0.05", "messages": MESSAGES, "max_tokens": 1000, "stream": True}
        streams = [server.send(CHAT, asked) for _ in range(2)]
        for stream in streams:
            assert stream.recv(20).startswith(b"HTTP/1.1 200")
        status, headers, data = server.ask("POST", CHAT, asked)
        assert (status, json.loads(data)["error"]["code"]) == (503, "QUEUE_FULL")
        assert int(headers["retry-after"]) >= 1
        for stream in streams:
            stream.close()
        server.wait_for(lambda: server.ask("POST", CHAT, GOOD.replace(b"named", b"act:tokens=1"))[0] == 200)


def test_a_connection_that_ends_in_a_body_leaves_nothing(server: Any) -> None:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{".encode())
    server.wait_for(lambda: server.get("/stats")["server"]["open_requests"] == 2)
    connection.close()
    server.wait_for(lambda: server.get("/stats")["server"]["open_requests"] == 1)


@pytest.mark.parametrize(
    ("argument", "field"), [("lora", "model"), ("json-schema", "response_format"), ("top-p", "top_p")]
)
def test_an_error_names_what_the_client_wrote_and_not_what_was_made_of_it(argument: str, field: str) -> None:
    with pytest.raises(CartdeckError) as caught, named_as(FIELD_NAMES):
        raise failure(Code.MODEL_NOT_FOUND, "there is none", argument=argument, details={"remedy": "look"})
    assert (caught.value.argument, caught.value.details["remedy"]) == (field, "look")
