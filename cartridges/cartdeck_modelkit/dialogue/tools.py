"""Owns tools that a model may call: their definitions in OpenAI's shape, which of them may be chosen, and how a call is
written, so that a text can be held to it.

It does not know templates' language, nor the engine that holds a text to the grammar made here.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from cartdeck_modelkit.constraint.schema_limits import check_schema
from cartdeck_modelkit.dialogue.call_schema import DEFINITIONS, closed, gather
from cartdeck_modelkit.dialogue.chat_template import ChatTemplate
from cartdeck_modelkit.dialogue.messages import Dialogue, as_record
from cartdeck_protocol.errors import CartdeckError, Code, failure

MOST_TOOLS: Final = 128
CHOICES: Final = ("auto", "none", "required")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHORT_ID: Final = re.compile(r"[A-Za-z0-9]{9}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function: its name, the schema of its arguments, and the definition as it was given."""

    name: str
    parameters: dict[str, Any]
    definition: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a model writes a call: JSON of `name` and `arguments_key`, between two marks; with `is_list` a list of such
    calls. Without marks the whole answer is a call (or a list of them), or none: its first character tells.

    `token` is one of control that stands before calls without marks and shows in no text: it must be there where
    `is_list`, and may be elsewhere.
    """

    opening: str
    closing: str
    arguments_key: str = "arguments"
    is_list: bool = False
    token: int | None = None

    def behind(self, token: int) -> "CallSyntax":
        """The same calls, with `token` of control in place of the opening mark."""
        return replace(self, opening="", token=token)


TAGGED: Final = CallSyntax("<tool_call>", "</tool_call>")
"""What most templates that know tools write, and our own prompt too."""

BARE: Final = CallSyntax("", "", "parameters")
"""Llama 3.1 and later."""

LISTED: Final = CallSyntax("[TOOL_CALLS]", "", is_list=True)
"""Mistral, up to where the arguments have a mark of their own (`[ARGS]`)."""

_MARKED_ARGUMENTS: Final = ("[ARGS]", "<function=", "<arg_key>")
"""Where calls are not one piece of JSON: later models of Mistral, Qwen's for code, GLM."""

PYTHON_TAG: Final = "<|python_tag|>"
"""What Llama may write before a call: a token of control."""


def read_tools(given: Any) -> list[Tool]:
    """The tools of a request; none for None.

    Raises `BAD_ARGUMENT` with the `index` of a definition of another shape, `UNSUPPORTED_SCHEMA` for parameters that a
    text cannot be held to.
    """
    if given is None:
        return []
    entries = cast("list[Any]", given) if isinstance(given, list) else [None]
    if len(entries) > MOST_TOOLS:
        raise failure(Code.BAD_ARGUMENT, f"{len(entries)} tools, and at most {MOST_TOOLS} are taken", argument="tools")
    tools = [_read_tool(entry, index) for index, entry in enumerate(entries)]
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise _refused(index, f"has the name {name}, as another one before it")
    return tools


def _read_tool(entry: Any, index: int) -> Tool:
    record = as_record(entry)
    inner: Any = record.get("function")
    if record.get("type") != "function" or not isinstance(inner, Mapping):
        raise _refused(index, 'is none; expected {"type": "function", "function": {"name": …, "parameters": …}}')
    function = cast("Mapping[str, Any]", inner)
    name: Any = function.get("name")
    parameters: Any = function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _refused(index, f"has the name {name!r:.80}, expected 1 to 64 letters, digits, - . or _")
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    try:
        check_schema(parameters)
    except CartdeckError as error:
        message = f"the parameters of the tool {name}: {error.message}"
        raise failure(error.code, message, argument="tools", details={**error.details, "index": index}) from None
    return Tool(name, parameters, dict(cast("Mapping[str, Any]", entry)))


def choose_tools(tools: list[Tool], choice: Any) -> tuple[list[Tool], bool]:
    """The tools that may be called, and whether one must be; `choice` as OpenAI has it. Raises `BAD_ARGUMENT`."""
    if choice is None or choice == "auto":
        return tools, False
    if choice == "none":
        return [], False
    if choice == "required" and tools:
        return tools, True
    name: Any = choice
    if isinstance(choice, Mapping):
        name = as_record(as_record(choice).get("function")).get("name")
    chosen = [tool for tool in tools if tool.name == name]
    if not chosen:
        known = ", ".join([*CHOICES, *(tool.name for tool in tools)])
        raise failure(
            Code.BAD_ARGUMENT, f"tool-choice is {choice!r:.80}, expected one of {known}", argument="tool-choice"
        )
    return chosen, True


@dataclass(slots=True)
class ToolUse:
    """What a request says of tools: all of them, those that may be called now, whether one must be, and whether that is
    all: one that is asked for by its name is called once."""

    tools: list[Tool] = field(default_factory=list[Tool])
    callable: list[Tool] = field(default_factory=list[Tool])
    is_required: bool = False
    is_single: bool = False

    @classmethod
    def read(cls, tools: Any, choice: Any) -> "ToolUse":
        """From the arguments `tools` and `tool-choice`. Raises what `read_tools` and `choose_tools` raise."""
        known = read_tools(tools)
        callable_now, is_required = choose_tools(known, choice)
        return cls(known, callable_now, is_required, is_single=is_required and choice != "required")


def syntax_of(template: ChatTemplate) -> CallSyntax | None:
    """How the template has a model write calls; None where it knows no tools, or has a way that is not known here."""
    if not template.takes_tools or any(mark in template.source for mark in _MARKED_ARGUMENTS):
        return None
    if TAGGED.opening in template.source and TAGGED.closing in template.source:
        return TAGGED
    if '"parameters"' in template.source and "ipython" in template.source:
        return BARE
    if LISTED.opening in template.source:
        return LISTED
    return None


def call_grammar(tools: list[Tool], syntax: CallSyntax, *, is_required: bool, is_single: bool = False) -> str:
    """The grammar, in llguidance's Lark, of an answer: text, or calls of `tools`, or text and then calls; with
    `is_required` calls alone, with `is_single` one of them. Arguments that a tool does not list are in no call, unless
    it says something of them."""
    arguments, definitions = gather([closed(tool.parameters) for tool in tools])
    calls = [_call_schema(tool.name, one, syntax) for tool, one in zip(tools, arguments, strict=True)]
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if syntax.is_list:
        schema = {"type": "array", "items": schema, "minItems": 1, **({"maxItems": 1} if is_single else {})}
    if definitions:
        schema[DEFINITIONS] = definitions
    opening, closing = json.dumps(syntax.opening), json.dumps(syntax.closing)
    lines = [f"body: %json {json.dumps(schema, ensure_ascii=False)}", r"WS: /[ \n]{0,2}/"]
    if not syntax.opening:
        body = "body" if syntax.token is None else f"<[{syntax.token}]>{'' if syntax.is_list else '?'} WS body"
        first = r"\[" if syntax.is_list else "{"
        text = rf"TEXT: /[ \t\r\n]*[^{first} \t\r\n](.|\n)*/"  # as the first character tells calls from text
        return "\n".join([f"start: {body}" if is_required else f"start: {body} | TEXT", *lines, text])
    rest = f"WS body WS {closing}" if closing != '""' else "WS body"
    if is_required:
        more = "" if syntax.is_list or is_single else f" (WS {opening} {rest})*"
        return "\n".join([f"start: {opening} {rest}{more}", *lines])
    mark = re.escape(syntax.opening).replace("/", r"\/")
    text = [rf"before[lazy]: /(.|\n)*{mark}/", rf"TEXT: /(.|\n)*/ & ~/(.|\n)*{mark}(.|\n)*/"]
    return "\n".join(["start: call* TEXT?", f"call: before {rest}", *lines, *text])


def _call_schema(name: str, arguments: dict[str, Any], syntax: CallSyntax) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, syntax.arguments_key: arguments},
        "required": ["name", syntax.arguments_key],
        "additionalProperties": False,
    }


def fit_call_ids(dialogue: Dialogue, template: ChatTemplate) -> None:
    """Gives calls and their results ids of nine letters and digits where the template is Mistral's, which refuses any
    other; the same for the same, so that an earlier prompt stays the beginning of the next one."""
    if LISTED.opening not in template.source:
        return
    for message in dialogue.messages:
        if "tool_calls" in message:
            message["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]
        if "tool_call_id" in message:
            message["tool_call_id"] = _short_id(message["tool_call_id"])


def _short_id(given: str) -> str:
    return given if _SHORT_ID.fullmatch(given) else hashlib.sha256(given.encode()).hexdigest()[:9]


def explain_tools(dialogue: Dialogue, tools: list[Tool]) -> None:
    """Our own tool prompt, for a model whose template has none: puts the tools into the system text, and earlier calls
    and their results into the texts of their messages."""
    if tools:
        described = "\n".join(json.dumps(tool.definition["function"], ensure_ascii=False) for tool in tools)
        dialogue.lead(_PROMPT.format(tools=described, opening=TAGGED.opening, closing=TAGGED.closing))
    for message in dialogue.messages:
        for call in message.pop("tool_calls", []):
            written = json.dumps(call["function"], ensure_ascii=False)
            message["content"] = f"{message['content']}\n{TAGGED.opening}\n{written}\n{TAGGED.closing}".lstrip()
        if message["role"] == "tool":
            message["role"] = "user"
            message["content"] = f"<tool_result>\n{message['content']}\n</tool_result>"


_PROMPT: Final = """\
You can call these functions, one JSON description in each line:
{tools}
To call one, write nothing but
{opening}
{{"name": "the function's name", "arguments": {{"argument": "value"}}}}
{closing}
Its result comes back between <tool_result> and </tool_result>. Call a function when it helps to answer; else answer in
plain words."""


def _refused(index: int, what: str) -> CartdeckError:
    return failure(Code.BAD_ARGUMENT, f"the tool {index} {what}", argument="tools", details={"index": index})
