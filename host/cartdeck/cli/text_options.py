"""Owns the options of the commands that have a model make text, each spelt and explained once.

It knows no default, no range and no type of theirs: what is given is sent as it is spelt, and the cap's definition
decides.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, get_args

import typer

from cartdeck_protocol.errors import Code, failure

Model: TypeAlias = Annotated[
    str | None,
    typer.Option("--model", metavar="SPEC", help="Which model: a path, hf:, package:, pypi:, or a catalog's name."),
]
CatalogFile: TypeAlias = Annotated[
    Path | None, typer.Option("--catalog", metavar="FILE", help="Where --model is a name; else this user's catalog.")
]
Profile: TypeAlias = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="Of a catalog's model; else the best that fits here.")
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


MODEL: Final[Mapping[str, Any]] = {"model": Model, "catalog": CatalogFile, "profile": Profile}
"""Which model."""
SAMPLING: Final[Mapping[str, Any]] = {
    "max_tokens": MaxTokens,
    "temperature": Temperature,
    "top_k": TopK,
    "top_p": TopP,
    "min_p": MinP,
    "repeat_penalty": RepeatPenalty,
    "frequency_penalty": FrequencyPenalty,
    "presence_penalty": PresencePenalty,
    "logit_bias": LogitBias,
    "seed": Seed,
    "deterministic": Deterministic,
    "stop": Stop,
    "grammar": Grammar,
    "json_schema": JsonSchema,
}
"""How a text is drawn, and what it is held to."""
SEVERAL: Final[Mapping[str, Any]] = {"n": Texts, "logprobs": Logprobs, "top_logprobs": TopLogprobs}
"""Several texts, and what is told of their tokens."""
DIALOGUE: Final[Mapping[str, Any]] = {"projector": Projector, "chat_template": ChatTemplate}
"""What turns a dialogue, and images in it, into a prompt."""
LOADING: Final[Mapping[str, Any]] = {
    "context_size": ContextSize,
    "threads": Threads,
    "gpu_layers": GpuLayers,
    "device": Device,
    "dtype": Dtype,
    "kv_cache": KvCache,
    "lora": Lora,
}
"""How a model is loaded."""
SHARED_OUT: Final[Mapping[str, Any]] = {"tensor_parallel": TensorParallel}


@dataclass(frozen=True, slots=True)
class Choice:
    """What a name of a catalog means: the file, else this user's, and the model's profile, else the best."""

    catalog: Path | None = None
    profile: str | None = None


def choice_among(given: dict[str, Any]) -> Choice:
    """The choice that the options of `MODEL` make, which are no longer among what is given then, but for the model."""
    return Choice(given.pop("catalog"), given.pop("profile"))


Command = Callable[..., None]


def takes(*groups: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Gives a command the options of these groups, name to type: they come as its `**given`, none of them needed."""

    def extend(command: Command) -> Command:
        own = [one for one in inspect.signature(command).parameters.values() if one.kind is not one.VAR_KEYWORD]
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=kind,
                default=False if get_args(kind)[0] is bool else None,
            )
            for group in groups
            for name, kind in group.items()
        ]
        vars(command)["__signature__"] = inspect.Signature([*own, *options])
        return command

    return extend


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
