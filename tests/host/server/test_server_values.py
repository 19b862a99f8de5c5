"""Vectors, transcripts, native calls and plans of doubles."""

import base64
import io
import json
import struct
import wave
from typing import Any

import pytest

openai = pytest.importorskip("openai")
VECTOR = [0.6, 0.0, 0.8]


def wav(seconds: float = 0.1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(b"\0\0" * int(8000 * seconds))
    return file.getvalue()


@pytest.mark.parametrize("given", ["one two", ["one two"], ["one", "two"]])
def test_vectors_are_the_same_by_the_clients_default_and_as_numbers(client: Any, given: Any) -> None:
    answer = client.embeddings.create(model="act:", input=given)  # the client asks for base64
    numbers = client.embeddings.create(model="act:", input=given, encoding_format="float")
    assert len(answer.data) == (1 if given != ["one", "two"] else 2)
    for one, other in zip(answer.data, numbers.data, strict=True):
        assert one.embedding == pytest.approx(VECTOR, abs=1e-6)
        assert other.embedding == pytest.approx(one.embedding, abs=1e-6)
        assert one.index == other.index
    assert answer.usage.prompt_tokens == 2


def test_base64_is_little_endian_float32(server: Any) -> None:
    status, told = server.post("/v1/embeddings", {"model": "act:", "input": "x", "encoding_format": "base64"})
    assert status == 200
    assert struct.unpack("<3f", base64.b64decode(told["data"][0]["embedding"])) == pytest.approx(VECTOR)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoding_format", "hex"), ("input", []), ("input", [1.5]), ("input", ["a", 1]), ("input", None),
        ("input", ["x"] * 2049), ("dimensions", 2), ("dimensions", 0), ("truncate", "middle"), ("input", [1, 2]),
        ("input", 5),
    ],
)  # fmt: skip
def test_what_cannot_be_embedded_is_refused_by_its_name(server: Any, field: str, value: Any) -> None:
    status, told = server.post("/v1/embeddings", {"model": "act:", "input": "x", field: value})
    assert (status, told["error"]["param"]) == (400, field)


def test_the_dimensions_that_a_model_has_may_be_asked_for(client: Any) -> None:
    assert len(client.embeddings.create(model="act:", input="x", dimensions=3).data[0].embedding) == 3


def test_a_vector_may_be_cut_where_the_model_was_made_for_it() -> None:
    from cartdeck.server.models.directory import ServedModel
    from cartdeck.server.openai_api.embedding_endpoint import fitted

    model = ServedModel("m", "act:", dimensions=(2,))
    assert struct.unpack("<2f", fitted(struct.pack("<3f", 3, 4, 12), 2, model)) == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("form", ["json", "text", "srt", "vtt", "verbose_json"])
def test_a_transcript_comes_in_each_form(client: Any, form: str) -> None:
    file = ("a.wav", wav())
    answer = client.audio.transcriptions.create(model="act:", file=file, response_format=form)
    size = len(wav())
    match form:
        case "json":
            assert answer.text == f"transcribe {size} bytes"
        case "text":
            assert answer == f"transcribe {size} bytes\n"
        case "srt":
            assert answer.startswith("1\n00:00:00,000 --> 00:00:01,250\ntranscribe\n")
        case "vtt":
            assert answer.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.250\n")
        case _:
            assert (answer.language, answer.duration, len(answer.segments)) == ("en", 2.5, 2)
            assert (answer.segments[1].start, answer.segments[1].end) == (1.25, 2.5)


def test_a_segment_has_all_that_the_clients_type_asks_for(client: Any) -> None:
    options = {"response_format": "verbose_json", "timestamp_granularities": ["segment"]}
    heard = client.audio.transcriptions.create(model="act:", file=("a.wav", wav()), **options)
    type(heard).model_validate(heard.model_dump(), strict=True)  # the client itself takes whatever comes
    assert heard.segments[1].model_dump() == {
        "id": 1, "seek": 50, "start": 1.25, "end": 2.5, "text": f" {len(wav())} bytes", "tokens": [50364, 7],
        "temperature": 0.0, "avg_logprob": -0.25, "compression_ratio": 0.75, "no_speech_prob": 0.125,
    }  # fmt: skip


def test_what_nobody_said_of_a_segment_is_left_out(server: Any) -> None:
    import httpx2

    form = {"model": "act:bare=1", "response_format": "verbose_json"}
    url = f"{server.url}/v1/audio/transcriptions"
    told = httpx2.post(url, data=form, files={"file": ("a.wav", wav())}, timeout=60).json()
    assert told["segments"][1] == {"id": 1, "seek": 125, "start": 1.25, "end": 2.5, "text": f" {len(wav())} bytes"}


def test_times_of_words_are_refused_by_name(client: Any) -> None:
    options = {"response_format": "verbose_json", "timestamp_granularities": ["segment", "word"]}
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(model="act:", file=("a.wav", wav()), **options)
    assert (caught.value.param, caught.value.code) == ("timestamp_granularities", "UNSUPPORTED")
    assert "word" in caught.value.message


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the client says so of its own method
def test_a_translation_is_asked_of_the_same_model(client: Any) -> None:
    answer = client.audio.translations.create(model="act:", file=("a.wav", wav()))
    assert answer.text.startswith("translate ")


def test_a_transcript_can_be_a_stream(client: Any) -> None:
    events = list(client.audio.transcriptions.create(model="act:", file=("a.wav", wav()), stream=True))
    assert [one.type for one in events][-1] == "transcript.text.done"
    assert "".join(one.delta for one in events[:-1]).strip() == events[-1].text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", "a lead"), ("temperature", 0.5), ("response_format", "xml"), ("timestamp_granularities", ["word"]),
        ("language", ""), ("extra", "x"), ("timestamp_granularities", ["segment"]),
    ],
)  # fmt: skip
def test_what_cannot_be_heard_is_refused_by_its_name(client: Any, field: str, value: Any) -> None:
    known = field != "extra"
    options = {field: value} if known else {"extra_body": {field: value}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(model="act:", file=("a.wav", wav()), **options)
    assert caught.value.param == field


def test_a_recording_that_is_too_long_is_a_413_by_its_header_and_by_its_times(client: Any) -> None:
    for model, sound in (("act:", wav(61)), ("act:seconds=100", b"no header")):
        with pytest.raises(openai.APIStatusError) as caught:
            client.audio.transcriptions.create(model=model, file=("a.wav", sound))
        assert (caught.value.status_code, caught.value.code) == (413, "TOO_LARGE")


def test_a_form_without_its_file_is_refused(server: Any) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nact:\r\n--x--\r\n'
    path, kind = "/v1/audio/transcriptions", "multipart/form-data; boundary=x"
    status, _, data = server.ask("POST", path, body, content_type=kind)
    assert (status, json.loads(data)["error"]["param"]) == (400, "file")
    text = body.replace(b"--x--", b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nRIFF\r\n--x--')
    status, _, data = server.ask("POST", path, text, content_type=kind)
    told = json.loads(data)["error"]
    assert (status, told["param"], "expected a file" in told["message"]) == (400, "file", True)
    for broken in (body[:-20], b"nothing"):
        assert server.ask("POST", path, broken, content_type=kind)[0] == 400


def events_of(data: bytes) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for block in data.decode().strip().split("\n\n"):
        name, _, told = block.partition("\n")
        found.append((name.removeprefix("event: "), json.loads(told.removeprefix("data: "))))
    return found


def test_a_cap_is_called_with_all_its_events(server: Any) -> None:
    asked = {"cap": "cap:emit", "arguments": {"count": 2, "size": 3, "interval": 0.01}}
    status, _, data = server.ask("POST", "/caps/call", asked)
    told = events_of(data)
    assert status == 200
    assert "".join(one["text"] for name, one in told if name == "data") == "\0\0\0\1\1\1"
    assert any(name == "progress" and one["phase"] == "emitting" for name, one in told)
    assert told[-1][0] == "end"
    assert told[-1][1]["progress"] == 1


def test_a_cap_gives_one_record_where_that_is_asked_for(server: Any) -> None:
    asked = {"cap": "cap:echo", "arguments": {"data": {"base64": "/w=="}}, "stream": False}
    status, told = server.post("/caps/call", asked)
    assert (status, told["base64"]) == (200, "/w==")


def test_a_file_of_a_form_is_an_argument(server: Any) -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="cap"\r\n\r\ncap:sink\r\n'
        b'--x\r\nContent-Disposition: form-data; name="stream"\r\n\r\nfalse\r\n'
        b'--x\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\n'
        + b"y" * 3_000_000
        + b"\r\n--x--\r\n"
    )
    status, _, data = server.ask("POST", "/caps/call", body, content_type="multipart/form-data; boundary=x")
    assert status == 200
    assert json.loads(json.loads(data)["text"])["bytes"] == 3_000_000
    text = body.replace(b'; filename="a"', b"")
    status, _, data = server.ask("POST", "/caps/call", text, content_type="multipart/form-data; boundary=x")
    told = json.loads(data)["error"]
    assert (status, told["code"], told["param"]) == (400, "UNKNOWN_ARGUMENT", "data")
    assert 'goes into the field arguments, as JSON ({"data": …}), and a file as a file part' in told["message"]


def test_files_of_a_form_are_the_items_of_a_sequence_each_whole(server: Any) -> None:
    import httpx2

    def ask(cap: str, *files: tuple[str, bytes]) -> Any:
        form = {"cap": cap, "stream": "false", "arguments": '{"model": "act:"}' if cap == "embed-text" else "{}"}
        parts = [(name, ("a.txt", data)) for name, data in files]
        return httpx2.post(f"{server.url}/caps/call", data=form, files=parts, timeout=60)

    told = ask("embed-text", ("texts", b"one two " * 100_000), ("texts", b"three")).json()
    assert (len(told["items"]), told["provenance"]["usage"]["prompt_tokens"]) == (2, 200_001)
    for cap, files, argument in (
        ("embed-text", [("texts", b"\xff")], "texts"),
        ("embed-text", [("words", b"x")], "words"),
        ("cap:sink", [("data", b"x"), ("data", b"y")], "data"),
    ):
        answer = ask(cap, *files)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, argument)
    assert ask("cap:nothing-here", ("x", b"x")).status_code == 404


@pytest.mark.parametrize(("path", "key"), [("/caps/call", "arguments"), ("/plans/run", "inputs")])
def test_a_json_list_is_the_items_of_a_sequence_and_a_text_is_one_item(server: Any, path: str, key: str) -> None:
    def ask(texts: Any) -> tuple[int, Any]:
        what = {"cap": "embed-text"} if key == "arguments" else {"plan": "(texts, model) -> embed-text -> vectors"}
        return server.post(path, {**what, key: {"texts": texts, "model": "act:"}, "stream": False})

    for texts, count in ((["one", "two", "three"], 3), ([], 0), ("one", 1), ('["one", "two"]', 1)):
        status, told = ask(texts)
        assert status == 200, told
        assert len(told.get("outputs", {}).get("vectors", told)["items"]) == count


@pytest.mark.parametrize(("path", "key"), [("/caps/call", "arguments"), ("/plans/run", "inputs")])
def test_what_is_no_text_is_none_of_a_sequence_and_is_refused_by_its_name(server: Any, path: str, key: str) -> None:
    what = {"cap": "embed-text"} if key == "arguments" else {"plan": "(texts, model) -> embed-text -> vectors"}
    for texts, code in (
        (["one", 2], "BAD_ARGUMENT"), ([1], "BAD_ARGUMENT"), (["one", {"a": 1}], "BAD_ARGUMENT"), (5, "BAD_ARGUMENT"),
        (True, "BAD_ARGUMENT"), (["one", ["two"]], "BAD_ARGUMENT"), (["one", None], "BAD_ARGUMENT"),
        (None, "MISSING_ARGUMENT"),
    ):  # fmt: skip  # one list
        status, told = server.post(path, {**what, key: {"texts": texts, "model": "act:"}, "stream": False})
        assert (status, told["error"]["code"], told["error"]["param"]) == (400, code, "texts"), texts


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"cap": "cap:nothing-here"}, 404, "NO_SUCH_CAP"),
        ({"cap": "cap:emit", "arguments": {"count": -1}}, 400, "BAD_ARGUMENT"),
        ({"cap": "cap:emit", "arguments": {"many": 1}}, 400, "UNKNOWN_ARGUMENT"),
        ({"cap": "cap:misbehave", "arguments": {"action": "raise"}}, 500, "HANDLER_FAILED"),
        ({"cap": "cap:misbehave", "arguments": {"action": "stall"}, "timeout_s": 0.1}, 504, "TIMED_OUT"),
        ({"cap": "cap:echo", "arguments": {"data": {"base64": "?"}}}, 400, "BAD_ARGUMENT"),
        ({"arguments": {}}, 400, "MISSING_ARGUMENT"),
    ],
)
def test_a_call_that_fails_has_the_status_of_its_code(server: Any, asked: Any, status: int, code: str) -> None:
    found, told = server.post("/caps/call", {**asked, "stream": False})
    assert (found, told["error"]["code"]) == (status, code)


def test_a_plan_runs_with_its_events_and_as_one_record(server: Any) -> None:
    asked = {"plan": "text -> shout -> loud\nshout cap:echo;test", "inputs": {"text": "hello"}}
    status, _, data = server.ask("POST", "/plans/run", asked)
    told = events_of(data)
    assert status == 200
    assert [name for name, _ in told if name in ("step", "step-end", "end")] == ["step", "step-end", "end"]
    assert told[-1][1]["outputs"]["loud"] == {"text": "hello"}
    status, record = server.post("/plans/run", {**asked, "stream": False})
    assert (status, record["outputs"]["loud"]["text"]) == (200, "hello")


def test_fields_that_are_null_are_absent(server: Any) -> None:
    asked = {"cap": "emit", "arguments": None, "timeout_s": None, "stream": None}
    assert events_of(server.ask("POST", "/caps/call", asked)[2])[-1][0] == "end"
    asked = {"plan": "() -> emit -> x", "inputs": None, "on_error": None, "stream": False}
    assert server.post("/plans/run", asked)[0] == 200
    status, told = server.post("/plans/run", {"plan": None})
    assert (status, told["error"]["code"], told["error"]["param"]) == (400, "MISSING_ARGUMENT", "plan")


def test_an_alias_that_is_not_in_its_urn_names_its_cap_too(server: Any) -> None:
    assert all("identity" in one["caps"] for one in server.get("/cartridges")["cartridges"])
    asked = {"cap": "identity", "arguments": {"data": "x"}, "stream": False}
    status, told = server.post("/caps/call", asked)
    assert (status, told["text"]) == (200, "x")
    assert server.post("/caps/call", {**asked, "cap": "cap:identity"})[0] == 404


def test_a_bad_plan_is_refused_with_its_place(server: Any) -> None:
    status, told = server.post("/plans/run", {"plan": "a -> nothing-here -> b", "inputs": {"a": "x"}})
    assert status in (400, 404)
    assert told["error"]["details"]["line"] == 1
