"""Answers to dialogues by a real model: its own template, tools that it is held to, images that it sees."""

import base64
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from PIL import Image

import cartdeck
from cartdeck import Progress, Settings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

WriteGguf = Callable[..., Path]
DATA = Path(__file__).resolve().parents[2] / "data" / "gguf"
PROJECTOR = DATA / "shapes-mmproj-576.gguf"
CHAT, DESCRIBE = "cap:chat;gguf", "cap:describe-image;gguf"
BRIEF = {"role": "system", "content": "You are a helpful assistant."}
LLAVA = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n{% else %}USER: {{ m.content }}\n{% endif %}"
    "{% endfor %}ASSISTANT: "
)
SYSTEM = (
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the human's questions."
)
TIME_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["hours", "minutes"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_time", "description": "The time.", "parameters": TIME_SCHEMA}},
    {"type": "function", "function": {"name": "stop_clock", "description": "Stops the clock."}},
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with cartdeck.open(Settings()) as opened:
        yield opened


@pytest.fixture
def ask(engine: Any, real_model: Path) -> Callable[..., Any]:
    """Has the real model answer: `ask([messages], max_tokens=…)`."""

    def run(messages: list[Any], *, cap: str = CHAT, **changes: Any) -> Any:
        settings = {"model": str(real_model), "threads": 1, "temperature": 0, "max-tokens": 24, "context-size": 2048}
        named = {name.replace("_", "-"): value for name, value in changes.items()}
        return engine.run(cap, {"messages": {"messages": messages}, **settings, **named})

    return run


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def code_of(run: Callable[[], Any]) -> tuple[Code, str | None]:
    with pytest.raises(CartdeckError) as caught:
        run()
    return caught.value.code, caught.value.argument


def shape(name: str) -> bytes:
    return (DATA / "shapes" / f"{name}.png").read_bytes()


def data_uri(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(data).decode()}}


def test_a_dialogue_is_answered_by_the_models_own_template(ask: Callable[..., Any]) -> None:
    answer = ask([BRIEF, user("What is the capital of France?")])
    assert answer.text == "The capital of France is Paris."
    assert answer.provenance["finish_reason"] == "stop"
    assert answer.provenance["usage"]["prompt_tokens"] == 27  # with one <|im_start|> at the beginning, not two
    parts = ask([user([{"type": "text", "text": "What is the capital "}, {"type": "text", "text": "of France?"}])],
                system=BRIEF["content"])  # fmt: skip
    assert parts.text == answer.text


def test_a_second_turn_goes_on_from_the_first(ask: Callable[..., Any]) -> None:
    first = [BRIEF, user("Tell me a long story of a fox and a hen who live in a wood beside a river. " * 4)]
    told = ask(first, max_tokens=70)
    again = ask([*first, {"role": "assistant", "content": told.text}, user("And then?")], max_tokens=4)
    assert again.provenance["usage"]["cached_tokens"] >= 64


def test_a_model_without_template_says_so_and_takes_one(engine: Any, write_gguf: WriteGguf) -> None:
    arguments = {"model": str(write_gguf()), "messages": {"messages": [user("a")]}, "threads": 1, "max-tokens": 4}
    code, _ = code_of(lambda: engine.run(CHAT, arguments))
    assert code is Code.UNSUPPORTED
    given = {**arguments, "chat-template": "{{ bos_token }}{{ messages[0].content }}"}
    made = engine.run(CHAT, given)
    assert made.provenance["usage"]["prompt_tokens"] == 2  # one beginning, though template and metadata both have it


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("has_bos", [True, False])
def test_a_prompt_begins_once(engine: Any, write_gguf: WriteGguf, adds_bos: bool, has_bos: bool) -> None:
    path = write_gguf(**{"tokenizer.ggml.add_bos_token": adds_bos})
    template = ("{{ bos_token }}" if has_bos else "") + "{{ messages[0].content }}"
    arguments = {"messages": {"messages": [user("ab")]}, "chat-template": template, "threads": 1, "max-tokens": 1}
    made = engine.run(CHAT, {"model": str(path), **arguments})
    assert made.provenance["usage"]["prompt_tokens"] == 2 + (adds_bos or has_bos)


@pytest.mark.parametrize("choice", ['"required"', '{"type": "function", "function": {"name": "get_time"}}'])
def test_a_call_that_must_be_is_one_that_the_schema_allows(ask: Callable[..., Any], choice: str) -> None:
    answer = ask([user("What time is it in Paris, in hours?")], tools=TOOLS, tool_choice=choice, max_tokens=50)
    assert answer.text.strip() == ""
    calls = answer.items_of("events")
    assert calls
    for index, call in enumerate(calls):
        assert (call["type"], call["index"]) == ("tool_call", index)
        assert call["id"].startswith("call_")
        if call["name"] == "get_time":
            jsonschema.validate(json.loads(call["arguments"]), TIME_SCHEMA)
        else:
            assert (call["name"], json.loads(call["arguments"])) == ("stop_clock", {})
    if "get_time" in choice:
        assert {call["name"] for call in calls} == {"get_time"}


def test_a_named_tool_that_lists_no_arguments_is_called_once_without_any(ask: Callable[..., Any]) -> None:
    tool = {"type": "function", "function": {"name": "stop_clock", "parameters": {"type": "object", "properties": {}}}}
    named = json.dumps({"type": "function", "function": {"name": "stop_clock"}})
    answer = ask([user("Stop the kitchen clock now.")], tools=[tool], tool_choice=named, max_tokens=60)
    (call,) = answer.items_of("events")
    assert (call["name"], call["arguments"]) == ("stop_clock", "{}")
    assert answer.provenance["finish_reason"] == "stop"


def test_a_template_that_takes_tools_gets_them(ask: Callable[..., Any]) -> None:
    template = (
        "{% for tool in tools or [] %}<tool_call>{{ tool | tojson }}</tool_call>\n{% endfor %}"
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    )
    answer = ask([user("What time is it in Paris?")], tools=TOOLS, chat_template=template, tool_choice='"required"')
    plain = ask([user("What time is it in Paris?")], chat_template=template, max_tokens=1)
    told = answer.provenance["usage"]["prompt_tokens"] - plain.provenance["usage"]["prompt_tokens"]
    assert 100 < told < 250  # by the template alone, not by our own prompt as well
    assert not answer.text.strip()


def test_calls_behind_a_token_of_control_are_listed_and_show_in_no_text(engine: Any, write_gguf: WriteGguf) -> None:
    words = ["[TOOL_CALLS]", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [3, 3, 3, *([6] * 256)]
    path = write_gguf(**{"tokenizer.ggml.tokens": words, "tokenizer.ggml.token_type": types})
    parameters = {**TIME_SCHEMA, "properties": {"city": {"enum": ["Rome", "Oslo"]}, "unit": {"enum": ["hours"]}}}
    tool = {"type": "function", "function": {"name": "get_time", "parameters": parameters}}
    settings: dict[str, Any] = {
        "threads": 1,
        "temperature": 0,
        "max-tokens": 160,
        "tool-choice": '"required"',
        "tools": [tool],
    }
    settings["chat-template"] = "{% if tools %}{{ messages[0].content }}{% endif %}{# [TOOL_CALLS] #}"
    settings["logit-bias"] = {str(3 + byte): -100 for byte in b"\t\n\r "}
    answer = engine.run(CHAT, {"model": str(path), "messages": {"messages": [user("a")]}, **settings})
    calls = answer.items_of("events")
    assert calls
    assert answer.text == ""
    for call in calls:
        jsonschema.validate(json.loads(call["arguments"]), parameters)


def test_a_model_may_answer_in_words_beside_tools(ask: Callable[..., Any]) -> None:
    answer = ask([BRIEF, user("What is the capital of France?")], tools=TOOLS, tool_choice='"none"')
    assert answer.text == "The capital of France is Paris."
    free = ask([BRIEF, user("What is the capital of France?")], tools=TOOLS)
    assert free.text.strip() or free.items_of("events")


def test_what_cannot_go_with_tools_is_refused_by_name(ask: Callable[..., Any]) -> None:
    for name, value in (("grammar", 'root ::= "a"'), ("json_schema", {"type": "object"}), ("n", 2)):
        code, argument = code_of(lambda name=name, value=value: ask([user("a")], tools=TOOLS, **{name: value}))
        assert (code, argument) == (Code.BAD_ARGUMENT, name.replace("_", "-"))


def test_an_answer_is_held_to_a_schema_as_any_text(ask: Callable[..., Any]) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
              "additionalProperties": False}  # fmt: skip
    answer = ask([BRIEF, user("What is 2+2? Answer in JSON.")], json_schema=schema, max_tokens=60)
    if answer.provenance["finish_reason"] == "stop":
        jsonschema.validate(json.loads(answer.text), schema)


# images


@pytest.fixture
def look(engine: Any, real_model: Path) -> Callable[..., Any]:
    """Has the real model, with the projector, look at an image: `look(data, prompt=…)`."""

    def run(data: bytes, **changes: Any) -> Any:
        return engine.run(DESCRIBE, looking(real_model, image=data, **changes))

    return run


def looking(model: Path, **changes: Any) -> dict[str, Any]:
    settings = {"model": str(model), "projector": str(PROJECTOR), "threads": 1, "temperature": 0, "max-tokens": 12}
    template = {"context-size": 1024, "chat-template": LLAVA, "system": SYSTEM}
    return {**settings, **template, **{name.replace("_", "-"): value for name, value in changes.items()}}


@pytest.mark.parametrize("name", ["red_circle", "green_triangle", "yellow_star"])
def test_a_coloured_shape_is_described_exactly(look: Callable[..., Any], name: str) -> None:
    assert look(shape(name)).text == "a " + name.replace("_", " ")


def test_a_question_about_an_image_is_answered(look: Callable[..., Any]) -> None:
    answer = look(shape("yellow_star"), prompt="What color is it?")
    assert answer.text == "yellow"
    assert answer.provenance["finish_reason"] == "stop"
    assert answer.provenance["usage"]["completion_tokens"] == 1


def test_images_in_a_dialogue_are_told_apart(engine: Any, real_model: Path) -> None:
    def see(name: str, question: str) -> str:
        content = [data_uri(shape(name)), {"type": "text", "text": question}]
        messages = {"messages": [user(content)]}
        return engine.run(CHAT, looking(real_model, messages=messages)).text

    assert see("red_circle", "What is in the image?") == "a red circle"
    assert see("green_triangle", "What is in the image?") == "a green triangle"
    assert see("red_circle", "What color is it?") == "red"


def test_an_image_of_any_common_kind_is_seen(look: Callable[..., Any]) -> None:
    drawing = Image.open(io.BytesIO(shape("red_circle"))).convert("RGB")
    turned = Image.Exif()
    turned[0x0112] = 3  # upside down: a viewer turns it back
    for image, kind, options in (
        (drawing.convert("RGBA"), "PNG", {}),
        (drawing, "WEBP", {"lossless": True}),
        (drawing.rotate(180), "JPEG", {"exif": turned, "quality": 95}),
        (drawing, "GIF", {"save_all": True, "append_images": [Image.new("RGB", drawing.size, "blue")]}),
        (drawing.resize((3000, 3000)), "JPEG", {}),
    ):
        written = io.BytesIO()
        image.save(written, kind, **options)
        assert look(written.getvalue()).text == "a red circle", (kind, options)


def test_what_is_no_image_is_a_typed_error_and_the_process_lives(look: Callable[..., Any]) -> None:
    whole = shape("red_circle")
    for data in (b"<html></html>", whole[: len(whole) // 2], b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0" + bytes(100)):
        assert code_of(lambda data=data: look(data)) == (Code.BAD_IMAGE, "image")
    assert code_of(lambda: look(b""))[0] is Code.EMPTY_INPUT
    assert look(whole).text == "a red circle"


def test_an_image_is_looked_at_before_a_model_is_obtained_for_it(engine: Any, tmp_path: Path) -> None:
    absent = looking(Path("hf:owner/not-asked-for"))
    shown = {**absent, "messages": {"messages": [user([data_uri(b"<svg></svg>")])]}}
    assert code_of(lambda: engine.run(DESCRIBE, {**absent, "image": b"<svg></svg>"})) == (Code.BAD_IMAGE, "image")
    assert code_of(lambda: engine.run(CHAT, shown)) == (Code.BAD_IMAGE, "messages")
    broken = tmp_path / "no-model.gguf"
    broken.write_bytes(b"no model")
    whole = looking(broken, image=shape("red_circle"))
    assert code_of(lambda: engine.run(DESCRIBE, whole)) == (Code.BAD_MODEL_FILE, "model")


def test_a_model_and_its_projector_load_in_one_pass(engine: Any, real_model: Path) -> None:
    arguments = looking(real_model, image=shape("red_circle"), context_size=768)
    with engine.call(DESCRIBE, arguments) as call:
        steps = [event for event in call if isinstance(event, Progress)]
    loads = [step.fraction for step in steps if step.phase == "load"]
    # of what waits for its reader the latest is kept: which steps are seen is chance
    assert all(0.25 <= fraction <= 0.35 + 1e-9 for fraction in loads)
    assert [step.fraction for step in steps] == sorted(step.fraction for step in steps)
    assert steps[-1].phase == "inference"


def test_a_projector_beside_the_model_is_found(engine: Any, real_model: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(real_model)
    (tmp_path / "mmproj-shapes.gguf").symlink_to(PROJECTOR)
    arguments = looking(tmp_path / "model.gguf", image=shape("red_circle"))
    del arguments["projector"]
    result = engine.run(DESCRIBE, arguments)
    assert result.text == "a red circle"
    assert result.provenance["settings"]["projector"]["spec"] == str(tmp_path / "mmproj-shapes.gguf")


def test_a_model_without_eyes_says_so(engine: Any, real_model: Path, ask: Callable[..., Any]) -> None:
    arguments = looking(real_model, image=shape("red_circle"), context_size=2048)
    del arguments["projector"]
    assert code_of(lambda: engine.run(DESCRIBE, arguments)) == (Code.UNSUPPORTED, "projector")
    content = [data_uri(shape("red_circle")), {"type": "text", "text": "What is it?"}]
    assert code_of(lambda: ask([user(content)])) == (Code.UNSUPPORTED, "projector")
    assert ask([BRIEF, user("What is the capital of France?")]).text == "The capital of France is Paris."


def test_a_projector_that_does_not_fit_is_refused(engine: Any, write_gguf: WriteGguf, tmp_path: Path) -> None:
    model, image = write_gguf(), shape("red_circle")
    cut = tmp_path / "cut.gguf"
    shutil.copy(PROJECTOR, cut)
    with cut.open("r+b") as file:
        file.truncate(cut.stat().st_size // 2)
    for projector, code in (
        (PROJECTOR, Code.PROJECTOR_MISMATCH),
        (model, Code.BAD_MODEL_FILE),
        (cut, Code.MODEL_TRUNCATED),
    ):
        arguments = {**looking(model, image=image, context_size=256), "projector": str(projector)}
        assert code_of(lambda arguments=arguments: engine.run(DESCRIBE, arguments)) == (code, "projector")


def test_a_projector_is_no_language_model(engine: Any) -> None:
    arguments = {"model": str(PROJECTOR), "messages": {"messages": [user("a")]}, "threads": 1}
    assert code_of(lambda: engine.run(CHAT, arguments)) == (Code.BAD_MODEL_FILE, "model")
