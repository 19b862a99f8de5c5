"""Owns the options of the commands that have a model make text, each spelt and explained once.

It knows no default, no range and no type of theirs: what is given is sent as it is spelt, and the cap's definition
decides.
"""

import json
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from cartdeck_protocol.errors import Code, failure

Model: TypeAlias = Annotated[
    str | None, typer.Option("--model", metavar="SPEC", help="Which model: a path, hf:, package: or pypi:.")
]
MaxTokens: TypeAlias = Annotated[
    str | None, typer.Option("--max-tokens", metavar="INTEGER", help="Stop after so many tokens.")
]
Temperature: TypeAlias = Annotated[
    str | None,
    typer.Option("--temperature", metavar="NUMBER", help="0 takes the likeliest token; more is more varied."),
]
TopK: TypeAlias = Annotated[
    str | None, typer.Option("--top-k", metavar="INTEGER", help="Choose among so many likeliest tokens.")
]
TopP: TypeAlias = Annotated[
    str | None, typer.Option("--top-p", metavar="NUMBER", help="Choose among tokens that hold this much probability.")
]
MinP: TypeAlias = Annotated[
    str | None, typer.Option("--min-p", metavar="NUMBER", help="Leave out tokens below this part of the likeliest.")
]
RepeatPenalty: TypeAlias = Annotated[
    str | None, typer.Option("--repeat-penalty", metavar="NUMBER", help="Above 1, repeating becomes less likely.")
]
FrequencyPenalty: TypeAlias = Annotated[
    str | None,
    typer.Option("--frequency-penalty", metavar="NUMBER", help="Above 0, what was said often becomes less likely."),
]
PresencePenalty: TypeAlias = Annotated[
    str | None,
    typer.Option("--presence-penalty", metavar="NUMBER", help="Above 0, what was said at all becomes less likely."),
]
LogitBias: TypeAlias = Annotated[
    str | None,
    typer.Option("--logit-bias", metavar="JSON", help='What is added to tokens: {"123": -100} forbids token 123.'),
]
Deterministic: TypeAlias = Annotated[
    bool | None, typer.Option("--deterministic", help="A seed gives the same text under load too.")
]
Texts: TypeAlias = Annotated[
    str | None, typer.Option("--n", metavar="INTEGER", help="So many texts; --json shows those after the first.")
]
Logprobs: TypeAlias = Annotated[
    bool | None, typer.Option("--logprobs", help="How likely each token was; --json shows it.")
]
TopLogprobs: TypeAlias = Annotated[
    str | None, typer.Option("--top-logprobs", metavar="INTEGER", help="The likeliest tokens at each place as well.")
]
Seed: TypeAlias = Annotated[
    str | None, typer.Option("--seed", metavar="INTEGER", help="The same seed gives the same text.")
]
Stop: TypeAlias = Annotated[
    list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text; may be repeated.")
]
Grammar: TypeAlias = Annotated[
    Path | None, typer.Option("--grammar", metavar="FILE", help="Hold the text to the GBNF grammar in this file.")
]
JsonSchema: TypeAlias = Annotated[
    Path | None, typer.Option("--json-schema", metavar="FILE", help="Hold the text to the JSON schema in this file.")
]
ContextSize: TypeAlias = Annotated[
    str | None, typer.Option("--context-size", metavar="INTEGER", help="Tokens that the model keeps in view.")
]
Threads: TypeAlias = Annotated[
    str | None, typer.Option("--threads", metavar="INTEGER", help="Threads to compute with.")
]
GpuLayers: TypeAlias = Annotated[
    str | None, typer.Option("--gpu-layers", metavar="INTEGER", help="Layers to put on the GPU; -1: as many as fit.")
]
Device: TypeAlias = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="Where safetensors compute: auto, cpu, cuda, cuda:1.")
]
Dtype: TypeAlias = Annotated[
    str | None,
    typer.Option("--dtype", metavar="NAME", help="What safetensors compute in: auto, float32, bfloat16, float16."),
]
KvCache: TypeAlias = Annotated[
    str | None, typer.Option("--kv-cache", metavar="KIND", help="How safetensors keep the text: dynamic or static.")
]
TensorParallel: TypeAlias = Annotated[
    str | None, typer.Option("--tensor-parallel", metavar="INTEGER", help="Processes that share safetensors.")
]
Lora: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        metavar="SPEC",
        help='A LoRA adapter; may be repeated. {"model": "SPEC", "scale": 0.5} weakens it.',
    ),
]
Projector: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--projector", metavar="SPEC", help="The mmproj file that gives the model eyes; else the one beside it."
    ),
]
System: TypeAlias = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="What the model is told before all else.")
]
ChatTemplate: TypeAlias = Annotated[
    Path | None,
    typer.Option("--chat-template", metavar="FILE", help="A Jinja template to use in place of the model's own."),
]


def given(**options: Any) -> dict[str, Any]:
    """The arguments of a call: the options that were given, under the names that caps have for them. Files are read.

    Raises `FILE_NOT_FOUND`, `BAD_ARGUMENT` and `INVALID_TEXT` for a file, with the option's name.
    """
    arguments: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or value == []:
            continue
        spelt = name.replace("_", "-")
        arguments[spelt] = read_file(value, option=f"--{spelt}") if isinstance(value, Path) else value
    if "lora" in arguments:
        arguments["lora"] = [_adapter(text) for text in arguments["lora"]]
    return arguments


def read_file(path: Path, *, option: str) -> str:
    """The text in a file that an option names."""
    try:
        return path.expanduser().read_text("utf-8")
    except FileNotFoundError:
        raise failure(Code.FILE_NOT_FOUND, f"There is no file {path} for {option}.", argument=option) from None
    except UnicodeDecodeError:
        raise failure(Code.INVALID_TEXT, f"The file {path} for {option} is no UTF-8 text.", argument=option) from None
    except OSError as error:
        raise failure(Code.BAD_ARGUMENT, f"The file {path} for {option} cannot be read: {error.strerror}.",
                      argument=option) from None  # fmt: skip


def _adapter(text: str) -> Any:
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise failure(
            Code.BAD_ARGUMENT, f"--lora has {text[:80]!r}, which is no JSON: {error}.", argument="--lora"
        ) from None
