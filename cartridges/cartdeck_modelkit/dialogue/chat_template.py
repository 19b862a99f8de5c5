"""Owns a model's chat template: from messages to the one text that the model was trained to go on from.

It does not know models nor tokens. A template comes with a model from anywhere, so it runs in jinja2's immutable
sandbox, which reaches no attribute of Python's own and changes nothing it was given.
"""

import functools
import json
import re
import threading
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cartdeck_protocol.errors import CartdeckError, Code, failure

LONGEST_TEMPLATE_CHARACTERS: Final = 1_000_000
LONGEST_TEXT_CHARACTERS: Final = 50_000_000
MOST_STEPS: Final = 2_000_000
"""Of all `range` together, and of calls and attributes looked at, in one rendering."""

WIDEST_TEXT: Final = 100_000
"""What a text may be filled up to."""
_WIDE_FORMAT: Final = re.compile(r"%[-+ #0-9.]*?(?:\d{6}|\*)|\{[^{}]*:[^{}]*(?:\d{6}|\{)")
"""A width of six digits, or one that is an argument."""

_PROBE: Final = "a text to be found again"


class _Refusal(Exception):
    """What a template says by `raise_exception` of a dialogue that it does not take."""


class _Steps(threading.local):
    """How many steps the rendering on this thread has left."""

    left = MOST_STEPS

    def take(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise _unusable(f"it takes more than {MOST_STEPS:,} steps")

    def begin(self) -> None:
        self.left = MOST_STEPS


_steps: Final = _Steps()


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also bounds what a template may take of time and memory."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            if isinstance(left, str) and isinstance(right, str) and len(left) + len(right) > LONGEST_TEXT_CHARACTERS:
                raise _unusable("it makes something far too large")
        elif operator == "%":
            if isinstance(left, str):
                _check_format(left)
        elif operator == "**" or not isinstance(left, int | float) or not isinstance(right, int | float):
            sizes = [abs(one) if isinstance(one, int | float) else len(one) for one in (left, right)]
            if (sizes[0] ** min(sizes[1], 64) if operator == "**" else sizes[0] * sizes[1]) > LONGEST_TEXT_CHARACTERS:
                raise _unusable("it makes something far too large")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, callee: Any, /, *arguments: Any, **named: Any) -> Any:
        _steps.take()
        if isinstance(getattr(callee, "__self__", None), str):  # center, ljust and their like
            _check_widths(*arguments, *named.values())
        return super().call(context, callee, *arguments, **named)

    def getattr(self, obj: Any, attribute: str) -> Any:
        _steps.take()
        if isinstance(obj, str) and attribute in ("format", "format_map"):
            _check_format(obj)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _steps.take()
        return super().getitem(obj, argument)


def _check_widths(*values: Any) -> None:
    """Raises for a number that is a width beyond any that a text is to be filled up to."""
    if any(isinstance(value, int) and abs(value) > WIDEST_TEXT for value in values):
        raise _unusable("it makes something far too large")


def _check_format(text: str) -> None:
    """Raises for a format with such a width in it."""
    if _WIDE_FORMAT.search(text):
        raise _unusable("it makes something far too large")


def _measured(function: Any) -> Any:
    """A filter that is given no width beyond any."""

    @functools.wraps(function)
    def measured(*arguments: Any, **named: Any) -> Any:
        _check_widths(*arguments[1:], *named.values())
        return function(*arguments, **named)

    return measured


def _range(*bounds: int) -> range:
    found = range(*bounds)
    _steps.take(len(found))
    return found


class _GenerationBlock(Extension):
    """`{% generation %} … {% endgeneration %}`, with which some templates mark what is trained on: text like any."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class ChatTemplate:
    """A compiled template. `takes_tools` says whether it knows tools, `source` what it was made of."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        """`bos` and `eos` are the texts of the model's tokens for the beginning and the end of a text.

        Raises `UNSUPPORTED` for a template that cannot be compiled.
        """
        self.source = source
        self._tokens = {"bos_token": bos, "eos_token": eos}
        if len(source) > LONGEST_TEMPLATE_CHARACTERS:
            raise _unusable(f"it has {len(source):,} characters")
        environment = _new_environment()
        _steps.begin()  # what is constant in a template is computed when it is compiled
        try:
            self._template = environment.from_string(source)
            self.takes_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        except TemplateSyntaxError as error:
            raise _unusable(f"line {error.lineno}: {error.message}") from error
        except (TemplateError, RecursionError, MemoryError) as error:
            raise _unusable(str(error) or type(error).__name__) from error
        self._wants_parts = self._finds_parts_alone()

    def render(self, messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None) -> str:
        """The text of the dialogue, up to where the model's answer begins.

        Raises `BAD_ARGUMENT` with the template's own words for a dialogue that it refuses, `UNSUPPORTED` for a template
        that fails otherwise.
        """
        if self._wants_parts:
            messages = [_with_parts(message) for message in messages]
        try:
            return self._render(messages, tools)
        except _Refusal as refusal:
            message = f"the model's chat template refuses this dialogue: {str(refusal)[:300]}"
            raise failure(Code.BAD_ARGUMENT, message, argument="messages", phase="inference") from None
        except CartdeckError:
            raise
        except Exception as error:  # a template may fail in any way that an expression can
            raise _unusable(f"{type(error).__name__}: {error}") from error

    def _render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        _steps.begin()
        return self._template.render(messages=messages, tools=tools or None, add_generation_prompt=True, **self._tokens)

    def _finds_parts_alone(self) -> bool:
        """Whether the template shows a text only where it comes as a list of parts."""
        message: dict[str, Any] = {"role": "user", "content": _PROBE}

        def shows(one: dict[str, Any]) -> bool:
            try:
                return _PROBE in self._render([one], None)
            except Exception:  # as above; what is wrong is said when a dialogue is rendered
                return False

        return not shows(message) and shows(_with_parts(message))


def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
    if isinstance(message["content"], list):
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _new_environment() -> ImmutableSandboxedEnvironment:
    environment: Any = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    for name in ("center", "indent", "tojson", "wordwrap"):
        environment.filters[name] = _measured(environment.filters[name])
    environment.filters["format"] = _format
    environment.globals["range"] = _range
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _format(text: Any, *values: Any, **named: Any) -> str:
    _check_format(str(text))
    return str(text) % (named or values)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """JSON as models were trained on it: without the marks that make it safe in a web page."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str, sort_keys=bool(options.get("sort_keys")))


def _raise_exception(message: Any) -> NoReturn:
    raise _Refusal(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _unusable(why: str) -> CartdeckError:
    message = f"the model's chat template cannot be used: {why[:300]}; chat-template takes another one"
    return failure(Code.UNSUPPORTED, message, argument="chat-template", phase="inference")
