"""A text under a schema or a grammar: what says `stop` follows it, what was cut says `length`, what is no grammar is an
error and no death."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cartdeck import Engine, Settings
from cartdeck_protocol.errors import CartdeckError, Code

pytestmark = pytest.mark.model

Open = Callable[..., Any]
MakeText = Callable[..., Any]
WriteGguf = Callable[..., Path]
CAP = "cap:generate-text;gguf"
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"enum": ["red", "green", "blue"]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"},
    {"anyOf": [{"type": "integer", "multipleOf": 5}, {"type": "null"}]},
    {"type": "string", "format": "date"},
]
PROMPT = "Anna, 30, as JSON: "


def maker_of(model: Any) -> Any:
    from cartdeck_modelkit.constraint.guidance import ConstraintMaker

    return ConstraintMaker(model.model.token_table())


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_whatever_says_stop_is_valid_for_its_schema(
    real_model: Path, open_model: Open, make_text: MakeText, temperature: float
) -> None:
    model = open_model(real_model, context_size=512)
    maker = maker_of(model)
    stopped = 0
    for schema in SCHEMAS:
        settings = {"temperature": temperature, "seed": 1, "max_tokens": 30}
        made = make_text(model, PROMPT, constraint=maker.from_json_schema(schema), **settings)
        assert made.finish_reason in ("stop", "length")
        if made.finish_reason == "stop":
            stopped += 1
            Draft202012Validator(schema).validate(json.loads(made.text))
    assert stopped >= 3, "numbers differ in their last bits on another processor: a text may be cut there"


def test_a_model_of_noise_keeps_to_its_schema_too(write_gguf: WriteGguf, open_model: Open, make_text: MakeText) -> None:
    model = open_model(write_gguf())
    maker, stopped = maker_of(model), 0
    for number, schema in enumerate(SCHEMAS * 4):
        settings = {"temperature": 2.0, "seed": number, "max_tokens": 300, "min_p": 0.0, "top_p": 1.0, "top_k": 0}
        made = make_text(model, "a", constraint=maker.from_json_schema(schema), **settings)
        if made.finish_reason == "stop":
            stopped += 1
            Draft202012Validator(schema).validate(json.loads(made.text))
        else:
            assert made.completion_tokens == 300
    assert stopped >= 8


def test_a_constrained_text_that_is_cut_says_length(real_model: Path, open_model: Open, make_text: MakeText) -> None:
    model = open_model(real_model, context_size=512)
    made = make_text(model, PROMPT, constraint=maker_of(model).from_json_schema(PERSON), max_tokens=3)
    assert (made.finish_reason, made.completion_tokens) == ("length", 3)
    with pytest.raises(ValueError, match=r"."):
        json.loads(made.text)


GRAMMAR = """
root ::= "{" ws "\\"city\\": \\"" [A-Z] [a-z]+ "\\"" ws "," ws "\\"size\\": " ("small" | "large") ws "}"
ws ::= " "?
"""


def test_a_grammar_is_followed_with_the_text_that_a_full_pass_gives(
    real_model: Path, open_model: Open, make_text: MakeText, run_python: Callable[..., Any]
) -> None:
    program = """
import json, sys
from llama_cpp import Llama, LlamaGrammar
llama = Llama(sys.argv[1], n_ctx=512, n_threads=1, n_threads_batch=1, flash_attn=True, verbose=False)
made = []
for prompt in ("The capital of France as JSON: ", "A town: ", "{"):
    grammar = LlamaGrammar.from_string(sys.argv[2], verbose=False)
    answer = llama.create_completion(prompt, max_tokens=40, temperature=0.0, grammar=grammar)
    made.append(answer["choices"][0]["text"])
print(json.dumps(made))
"""
    theirs = run_python(program, str(real_model), GRAMMAR)
    model = open_model(real_model, context_size=512)
    prompts = ("The capital of France as JSON: ", "A town: ", "{")
    made = [make_text(model, prompt, grammar=GRAMMAR, max_tokens=40) for prompt in prompts]
    assert [one.text for one in made] == theirs
    assert "stop" in {one.finish_reason for one in made}


def test_a_grammar_holds_whatever_is_drawn(real_model: Path, open_model: Open, make_text: MakeText) -> None:
    model = open_model(real_model, context_size=512)
    for seed in range(6):
        made = make_text(model, "Yes or no? ", grammar='root ::= "yes" | "no" | "perhaps"', temperature=2.0, seed=seed)
        assert (made.text, made.finish_reason) in {(text, "stop") for text in ("yes", "no", "perhaps")}
        again = make_text(model, "Yes or no? ", grammar='root ::= "yes" | "no" | "perhaps"', temperature=2.0, seed=seed)
        assert again.text == made.text


def test_a_grammar_that_the_vocabulary_cannot_write_is_an_error_and_no_death(
    write_gguf: WriteGguf, open_model: Open, make_text: MakeText
) -> None:
    tokens = ["<unk>", "<s>", "</s>", "\u2581", *(chr(0x4E00 + index) for index in range(255))]
    changes = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [2, 3, 3, *([1] * 256)]}
    model = open_model(write_gguf(**changes))
    with pytest.raises(CartdeckError) as caught:
        make_text(model, "\u4e10", grammar='root ::= "x"')
    assert caught.value.code is Code.INVALID_GRAMMAR
    assert "vocabulary" in str(caught.value)
    assert make_text(model, "\u4e10").completion_tokens <= 8


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


BAD: list[tuple[dict[str, Any], Code]] = [
    ({"grammar": 'rout::="x"'}, Code.INVALID_GRAMMAR),
    ({"grammar": "root ::= nowhere"}, Code.INVALID_GRAMMAR),
    ({"grammar": 'root ::= root "x"'}, Code.INVALID_GRAMMAR),
    ({"grammar": 'root ::= "x"{3,1}'}, Code.INVALID_GRAMMAR),
    ({"grammar": "root ::= " + "(" * 5000 + '"x"' + ")" * 5000}, Code.INVALID_GRAMMAR),
    ({"json-schema": {"not": {"type": "string"}}}, Code.UNSUPPORTED_SCHEMA),
    ({"json-schema": {"$ref": "#"}}, Code.UNSUPPORTED_SCHEMA),
    ({"json-schema": nested(150)}, Code.UNSUPPORTED_SCHEMA),
    ({"grammar": 'root ::= "x"', "json-schema": {}}, Code.BAD_ARGUMENT),
]


def test_what_is_no_grammar_or_schema_is_refused_before_a_token_and_the_process_lives(write_gguf: WriteGguf) -> None:
    wanted = {"model": str(write_gguf()), "prompt": "a", "max-tokens": 200, "threads": 1, "seed": 3}
    digits = {"json-schema": {"type": "string", "pattern": "^\\d{3}$"}}

    async def use() -> None:
        async with asyncio.timeout(60), Engine(Settings()) as engine:
            await engine.run(CAP, wanted)
            process = pid_of(engine)
            for changes, code in BAD:
                with pytest.raises(CartdeckError) as caught:
                    await engine.run(CAP, {**wanted, **changes})
                assert caught.value.code is code, changes
                assert caught.value.argument in ("grammar", "json-schema")
            assert json.loads((await engine.run(CAP, {**wanted, **digits})).text).isdigit()
            assert (await engine.run(CAP, {**wanted, "grammar": 'root ::= "x" "y"'})).text == "xy"
            assert pid_of(engine) == process

    asyncio.run(use())


def pid_of(engine: Engine) -> int:
    return next(session.process.pid for session in engine.pool.sessions if session.key.cartridge == "gguf")
