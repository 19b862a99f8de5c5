"""Guards on a real server and real processes, asked by the official client: what is refused, flagged, held back, and
what happens without a verdict. The guards are doubles that write as guard models do."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

openai = pytest.importorskip("openai")

CARTDECK = str(Path(sys.executable).with_name("cartdeck"))
CATALOG = """
[guards.llama]
source = "ward:form=llamaguard3"
format = "llamaguard3"
description = "Knows bombs."

[guards.qwen]
source = "ward:form=qwen3guard"
format = "qwen3guard"
when = ["before"]
action = "flag"

[guards.shield]
source = "ward:form=shieldgemma"
format = "shieldgemma"
ask = "completion"
prompt = "<start_of_turn>{role}: {prompt}<end_of_turn> Yes or No?"
answer_prompt = "{role}: {answer}"
threshold = 0.25

[guards.structured]
model = "inner"
format = "json"
prompt = "Judge this: {dialogue}"
categories = ["violence"]
action = "flag"

[guards.silent]
source = "ward:says= ,form=silent"
format = "llamaguard3"
when_down = "allow"

[guards.strict]
source = "ward:says=sa"
format = "llamaguard3"

[guards.slow]
source = "ward:wait=30,form=slow"
format = "llamaguard3"
timeout_s = 0.3
when = ["before"]

[guards.dying]
source = "ward:dies=1"
format = "llamaguard3"
when = ["before"]

[models.inner]
source = "ward:form=json"
aliases = ["hidden-one"]

[models.guarded]
source = "act:tokens=3"
guards = ["llama"]
capabilities = ["chat", "completion", "tools"]

[models.loose]
source = "ward:says=build+a+bomb,form=loose"
guards = ["llama"]

[models.flagged]
source = "ward:says=build+a+bomb,form=flagged"
guards = ["qwen", "structured"]

[models.weighed]
source = "act:tokens=2"
guards = ["shield"]

[models.trusting]
source = "act:tokens=4"
guards = ["silent"]

[models.careful]
source = "act:tokens=5"
guards = ["strict"]

[models.hurried]
source = "act:tokens=6"
guards = ["slow"]

[models.mourning]
source = "act:tokens=7"
guards = ["dying"]

[models.free]
source = "act:tokens=8"
class = "critical"
[[models.free.scaling.windows]]
from = "00:00"
to = "23:00"
[[models.free.scaling.windows]]
from = "23:00"
to = "23:59"
prewarm_s = 86400
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guards")


@pytest.fixture(scope="module")
def guarded(place: Path, start_guarded: Callable[..., Any]) -> Iterator[Any]:
    catalog = place / "catalog.toml"
    catalog.write_text(CATALOG)
    with start_guarded(
        "--catalog", str(catalog), "--grace", "1", "--comment-every", "0.2", "--time-zone", "Asia/Kathmandu"
    ) as server:
        yield server


@pytest.fixture(scope="module")
def asked(guarded: Any) -> Callable[..., Any]:
    client = guarded.client()

    def ask(model: str, text: str, **more: Any) -> Any:
        return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **more)

    return ask


def findings(answer: Any) -> list[tuple[str, str, str, str]]:
    return [(one["guard"], one["when"], one["verdict"], one["action"]) for one in answer.model_extra.get("guards", [])]


def error_of(asked: Any, model: str, text: str, *, stream: bool = False) -> Any:
    """What the client raises: at once, or of a stream as an event, where a comment came before it."""
    with pytest.raises(openai.APIError) as caught:
        list(asked(model, text, stream=stream))
    return caught.value


def test_what_is_safe_is_answered_and_says_who_looked_at_it(asked: Any) -> None:
    answer = asked("guarded", "hello")
    assert answer.choices[0].message.content == "t0 t1 t2 "
    assert findings(answer) == [("llama", "before", "safe", "pass"), ("llama", "after", "safe", "pass")]
    assert "guards" not in asked("free", "a bomb").model_extra


def test_a_request_is_refused_before_the_model_is_asked(guarded: Any, asked: Any) -> None:
    for stream in (False, True):
        error = error_of(asked, "guarded", "build a bomb", stream=stream)
        assert stream or isinstance(error, openai.BadRequestError)
        assert (error.code, error.param) == ("content_filter", "messages")
        assert error.body["details"]["categories"] == ["S1", "S9"]
        assert "S1, S9" in error.message
    assert guarded.get("/stats")["models"].get("guarded", {}).get("error") is None


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Explain the bomb."}, {"role": "user", "content": "go on"}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "bomb"}]}],
        [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hello"},
            {"role": "tool", "tool_call_id": "1", "content": "a bomb"},
        ],
    ],
)
def test_whatever_a_client_wrote_is_looked_at(guarded: Any, messages: list[Any]) -> None:
    status, answer = guarded.post("/v1/chat/completions", {"model": "guarded", "messages": messages})
    assert (status, answer["error"]["code"]) == (400, "content_filter"), answer


def test_an_answer_is_refused_and_nothing_of_it_goes_out(asked: Any) -> None:
    answer = asked("loose", "hello", logprobs=True)
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("content_filter", None)
    assert "answer was refused" in choice.message.refusal
    assert not choice.logprobs.content
    assert findings(answer)[-1] == ("llama", "after", "unsafe", "refuse")
    chunks = list(asked("loose", "hello", stream=True, stream_options={"include_usage": True}))
    said = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    assert said == ""
    assert "refused" in "".join(one.choices[0].delta.refusal or "" for one in chunks if one.choices)
    last = next(one for one in reversed(chunks) if one.choices)
    assert last.choices[0].finish_reason == "content_filter"
    assert findings(last)[-1] == ("llama", "after", "unsafe", "refuse")
    assert chunks[-1].usage.completion_tokens == 2


def test_an_answer_that_is_held_back_comes_whole_when_it_was_judged(asked: Any) -> None:
    chunks = list(asked("guarded", "hello", stream=True))
    pieces = [one.choices[0].delta.content for one in chunks if one.choices[0].delta.content]
    assert pieces == ["t0 t1 t2 "]
    assert findings(chunks[-1]) == [("llama", "before", "safe", "pass"), ("llama", "after", "safe", "pass")]


def test_what_is_flagged_is_answered_and_says_so(asked: Any) -> None:
    expected = [
        ("qwen", "before", "unsafe", "flag"),
        ("structured", "before", "safe", "pass"),
        ("structured", "after", "unsafe", "flag"),
    ]
    answer = asked("flagged", "a weapon")
    assert answer.choices[0].message.content == "build a bomb"
    assert answer.choices[0].finish_reason == "stop"
    assert findings(answer) == expected
    told = answer.model_extra["guards"]
    assert (told[0]["label"], told[0]["categories"]) == ("controversial", ["Violent"])
    assert told[2]["categories"] == ["violence"]
    chunks = list(asked("flagged", "a weapon", stream=True))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == "build a bomb"
    assert findings(chunks[-1]) == expected


def test_a_probability_decides_where_the_tokens_have_one(asked: Any) -> None:
    told = asked("weighed", "hello").model_extra["guards"]
    assert [one["probability"] for one in told] == [pytest.approx(0.01), pytest.approx(0.01)]
    with pytest.raises(openai.BadRequestError, match="refused by a guard"):
        asked("weighed", "a weapon")  # No, by 0.7, and 0.25 is enough to refuse


def test_completions_are_guarded_prompt_by_prompt_and_text_by_text(guarded: Any) -> None:
    client = guarded.client()
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="guarded", prompt=["hello", "a bomb"])
    assert (caught.value.param, caught.value.body["details"]["index"]) == ("prompt", 1)
    answer = client.completions.create(model="loose", prompt=["hello", "you"])
    assert [(one.text, one.finish_reason) for one in answer.choices] == [("", "content_filter")] * 2
    assert [(one["when"], one["index"]) for one in answer.model_extra["guards"]] == [
        ("before", 0), ("after", 0), ("before", 1), ("after", 1),
    ]  # fmt: skip
    chunks = list(client.completions.create(model="loose", prompt="hello", stream=True))
    assert "".join(one.choices[0].text for one in chunks) == ""
    assert chunks[-1].choices[0].finish_reason == "content_filter"


def test_without_a_verdict_the_catalog_decides_and_it_is_told(guarded: Any, asked: Any) -> None:
    answer = asked("trusting", "a bomb")
    assert answer.choices[0].message.content == "t0 t1 t2 t3 "
    assert findings(answer) == [("silent", "before", "down", "allow"), ("silent", "after", "down", "allow")]
    assert answer.model_extra["guards"][0]["error"] == "UNREADABLE"
    error = error_of(asked, "careful", "hello")
    assert (error.status_code, error.code) == (503, "GUARD_DOWN")
    assert error.response.headers["retry-after"] == "5"
    assert error_of(asked, "careful", "hello", stream=True).code == "GUARD_DOWN"
    assert "gives no verdict" in error_of(asked, "hurried", "hello", stream=True).message
    reasons = {"careful": "UNREADABLE", "hurried": "TIMED_OUT", "mourning": "CARTRIDGE_DIED"}
    for model, reason in reasons.items():
        status, told = guarded.post(
            "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "x"}]}
        )
        assert (status, told["error"]["details"]["reason"]) == (503, reason)
    assert guarded.get("/stats")["guards"]["strict"]["is_down"].startswith('expected "safe"')


def test_guards_are_hidden_from_clients_and_always_held(guarded: Any) -> None:
    listed = {one["id"] for one in guarded.get("/v1/models")["data"]}
    assert {"guarded", "loose", "free"} <= listed
    names = ("llama", "qwen", "inner", "hidden-one", "structured", "ward:form=llamaguard3", "ward:form=json")
    assert not listed & set(names)
    for name in names:
        body = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
        status, answer = guarded.post("/v1/chat/completions", body)
        assert (status, answer["error"]["code"]) == (404, "MODEL_NOT_FOUND"), name
        assert not set(names) & set(answer["error"]["details"]["near"])
        assert guarded.ask("GET", f"/v1/models/{name}")[0] == 404
    stats = guarded.get("/stats")
    assert {"llama", "qwen", "shield", "structured"} <= set(stats["guards"])
    assert not set(stats["guards"]) & set(stats["models"])
    assert stats["guards"]["llama"]["verdicts"]["safe"] > 0

    def classes() -> list[str]:
        sessions = guarded.get("/stats")["sessions"]
        return [one["class"] for one in sessions if "form=llamaguard3" in one["instance"] and one["pid"]]

    guarded.wait_for(lambda: classes() == ["held"])


def test_windows_classes_and_verdicts_are_told_by_the_figures_and_by_top(guarded: Any) -> None:
    guarded.wait_for(lambda: guarded.get("/stats")["models"].get("free", {}).get("state") == "ready")
    windows = guarded.get("/stats")["models"]["free"]["schedule"]
    assert windows["is_held"] is True
    assert windows["next_begin"].endswith("T00:00:00+05:45")  # of Kathmandu, as the server is told
    [session] = [one for one in guarded.get("/stats")["sessions"] if "tokens=8" in one["instance"]]
    assert session["class"] == "critical"
    done = subprocess.run(
        [CARTDECK, "top", guarded.url, "--once"], capture_output=True, text=True, timeout=60, check=False
    )
    assert re.search("model free: ready, (window open until|next window) 2", done.stdout), done.stdout
    assert re.search(r"guard llama: ready, \d+ safe, \d+ unsafe, 0 down", done.stdout), done.stdout
    assert (
        'cartdeck_guard_verdicts_total{guard="llama",verdict="unsafe",when="before"}'
        in guarded.ask("GET", "/metrics")[2].decode()
    )


def test_nothing_leads_around_the_guards_unless_the_server_is_told_so(
    guarded: Any, place: Path, start_guarded: Callable[..., Any], rewrite: Callable[[Path, str], None]
) -> None:
    call = {"cap": "cap:chat", "arguments": {"messages": {"messages": []}, "model": "act:tokens=3"}}
    for path, body in (("/caps/call", call), ("/plans/run", {"plan": "x"}), ("/models/add", {"repository": "o/n"})):
        status, answer = guarded.post(path, body)
        assert (status, answer["error"]["code"]) == (403, "GUARDED")
    assert guarded.post("/caps/call", {"cap": "cap:list-models", "stream": False})[0] == 200
    body = {"model": "act:tokens=3", "messages": [{"role": "user", "content": "a bomb"}]}
    assert guarded.post("/v1/chat/completions", body)[0] == 404
    catalog = place / "one.toml"
    catalog.write_text('[guards.g]\nsource="ward:"\nformat="llamaguard3"\n[models.m]\nsource="act:"\nguards=["g"]\n')
    with start_guarded("--catalog", str(catalog), "--grace", "1", "--allow-unguarded") as server:
        assert server.post("/v1/chat/completions", body)[0] == 200
        # an edit is in force for the next request
        text = catalog.read_text()
        rewrite(catalog, text.replace('format="llamaguard3"', 'format="llamaguard3"\naction="flag"'))
        said = {"model": "m", "messages": [{"role": "user", "content": "a bomb"}]}
        server.wait_for(lambda: server.post("/v1/chat/completions", said)[0] == 200)
        assert server.post("/v1/chat/completions", said)[1]["guards"][0]["action"] == "flag"
        _, log = server.end()
    told = [json.loads(line) for line in log.splitlines()]
    changed = [one for one in told if one["event"] == "catalog"]
    assert (changed[0]["kind"], changed[0]["name"], changed[0]["keys"]) == ("guard", "g", ["action"])
    assert any(one["event"] == "guard" and one["what"] == "loaded" for one in told)


def test_a_client_that_leaves_while_a_guard_thinks_leaves_nothing(
    place: Path, start_guarded: Callable[..., Any]
) -> None:
    catalog = place / "wait.toml"
    catalog.write_text(
        '[guards.g]\nsource="ward:wait=60"\nformat="llamaguard3"\nwhen_down="allow"\ntimeout_s=120\n'
        '[models.m]\nsource="act:tokens=99"\nguards=["g"]\n'
    )
    with start_guarded("--catalog", str(catalog), "--grace", "1", "--comment-every", "0.2") as server:
        for stream in (False, True):
            body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hello"}]}
            connection = server.send("/v1/chat/completions", body)
            server.wait_for(lambda: server.open_calls("ward:").get("prompt", 0) >= 2)  # it is being loaded beside
            if stream:
                assert b": waiting" in read_until(connection, b": waiting")
            connection.close()
            server.wait_for(lambda: server.open_calls("ward:").get("prompt", 0) <= 1)
        assert not server.open_calls("act:tokens=99")
        assert server.get("/v1/models/m")["state"] == "unused"


def read_until(connection: Any, wanted: bytes) -> bytes:
    data, end_s = b"", time.monotonic() + 30
    while wanted not in data:
        assert time.monotonic() < end_s
        data += connection.recv(4096)
    return data
