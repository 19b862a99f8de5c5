"""Owns a model's chat template: from messages to the one text that the model was trained to go on from.

It does not know models nor tokens. A template comes with a model from anywhere, so it runs in jinja2's immutable
sandbox, which reaches no attribute of Python's own and changes nothing it was given.
"""

import functools
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final, NoReturn, cast

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cartdeck_modelkit.dialogue import template_bounds as bounds
from cartdeck_modelkit.dialogue.template_bounds import steps, unusable
from cartdeck_protocol.errors import CartdeckError, Code, failure

LONGEST_TEMPLATE_CHARACTERS: Final = 1_000_000

_PROBE: Final = "a text to be found again"
_TEXTS: Final = (str, bytes)


class _Refusal(Exception):
    """What a template says by `raise_exception` of a dialogue that it does not take."""


class _Generator(CodeGenerator):
    """Has what `~` makes looked at before it is made."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        escapes = "context.eval_ctx.autoescape" if frame.eval_ctx.volatile else repr(bool(frame.eval_ctx.autoescape))
        self.write(f"environment.tilde(markup_join if {escapes} else str_join, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also bounds what a template may take of time and memory."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))
    code_generator_class = _Generator
    concat: Any = staticmethod(bounds.joined)

    @staticmethod
    def tilde(join: Callable[[tuple[Any, ...]], str], parts: tuple[Any, ...]) -> str:
        """`part ~ part`"""
        bounds.check_size(bounds.weight(parts))
        return join(parts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        bounds.check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, callee: Any, /, *arguments: Any, **named: Any) -> Any:
        steps.take()
        method = getattr(callee, "__wrapped__", callee)  # the sandbox has format in a function of its own
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, _TEXTS):
            if name == "join":
                arguments = tuple(_listed(one) for one in arguments)
            bounds.check_method(owner, name, arguments, named)
        return super().call(context, callee, *arguments, **named)

    def getattr(self, obj: Any, attribute: str) -> Any:
        steps.take()
        if isinstance(obj, str) and attribute in ("format", "format_map"):
            bounds.check_format(obj)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        steps.take()
        return super().getitem(obj, argument)


def _range(*limits: int) -> range:
    found = range(*limits)
    steps.take(len(found))
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
            raise unusable(f"it has {len(source):,} characters")
        environment = _new_environment()
        steps.begin()  # what is constant in a template is computed when it is compiled
        try:
            self._template = environment.from_string(source)
            self.takes_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        except TemplateSyntaxError as error:
            raise unusable(f"line {error.lineno}: {error.message}") from error
        except (TemplateError, RecursionError, MemoryError) as error:
            raise unusable(str(error) or type(error).__name__) from error
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
            raise unusable(f"{type(error).__name__}: {error}") from error

    def _render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        steps.begin()
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
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        finalize=_shown,
    )
    environment.filters["tojson"] = _to_json
    environment.filters["format"] = _format
    for name, check in _FILTER_CHECKS.items():
        environment.filters[name] = _checked(environment.filters[name], check)
    environment.filters["map"] = _counted(environment.filters["map"])
    del environment.globals["lipsum"]
    environment.globals["range"] = _range
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _shown(value: Any) -> Any:
    """A value that an expression puts into the text."""
    if not isinstance(value, str):
        bounds.check_size(bounds.weight(value))
    return value


def _checked(function: Any, check: Callable[..., None]) -> Any:
    """A filter whose arguments are looked at first; what it is given by name comes behind the others."""

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        takes_context = hasattr(function, "jinja_pass_arg")
        first, *others = arguments[takes_context:]
        first = _listed(first)
        check(first, *others, *named.values())
        return function(*arguments[:takes_context], first, *others, **named)

    return checked


def _counted(function: Any) -> Any:
    """A filter that makes one value after the other, for whoever keeps them all."""

    @functools.wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        return _bounded(function(*arguments, **named))

    return counted


def _bounded(values: Iterator[Any]) -> Iterator[Any]:
    size = 0
    for one in values:
        steps.take()
        size += bounds.weight(one)
        bounds.check_size(size)
        yield one


def _listed(value: Any) -> Any:
    """What is taken one by one, as a list; anything else as it is."""
    return list(_bounded(cast("Iterator[Any]", value))) if isinstance(value, Iterator) else value


def _check_widths(value: Any, *widths: Any) -> None:
    bounds.check_widths(*widths)
    texts = [len(one) for one in widths if isinstance(one, str)]
    numbers = [abs(one) for one in widths if isinstance(one, int)]
    if isinstance(value, str):
        bounds.check_size((value.count("\n") + 1) * max([1, *texts, *numbers]) + len(value))


def _check_joined(value: Any, *others: Any) -> None:
    between = max((len(one) for one in others if isinstance(one, str)), default=0)
    count = len(value) if hasattr(value, "__len__") else 1
    bounds.check_size(bounds.weight(value) + count * between)


def _check_wrapped(value: Any, *others: Any) -> None:
    bounds.check_widths(*others)
    between = max((len(one) for one in others if isinstance(one, str)), default=1)
    bounds.check_size(len(str(value)) * max(1, between))


def _check_replaced(value: Any, old: Any = "", new: Any = "", *_: Any) -> None:
    bounds.check_replaced(str(value), str(old), str(new))


def _check_rows(_value: Any, *counts: Any) -> None:
    bounds.check_widths(*counts)


def _check_quoted(value: Any, *_: Any) -> None:
    bounds.check_quoted(value)


_FILTER_CHECKS: Final[dict[str, Callable[..., None]]] = {
    "batch": _check_rows,
    "center": _check_widths,
    "indent": _check_widths,
    "join": _check_joined,
    "pprint": _check_quoted,
    "replace": _check_replaced,
    "slice": _check_rows,
    "string": _check_quoted,
    "sum": _check_joined,
    "tojson": _check_quoted,
    "wordwrap": _check_wrapped,
}


def _format(text: Any, *values: Any, **named: Any) -> str:
    bounds.check_operation("%", str(text), named or values)
    return str(text) % (named or values)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """JSON as models were trained on it: without the marks that make it safe in a web page."""
    bounds.check_widths(indent)
    sort_keys = bool(options.get("sort_keys"))
    if indent is None:
        return json.dumps(value, ensure_ascii=False, default=str, sort_keys=sort_keys)
    encoder = json.JSONEncoder(ensure_ascii=False, indent=indent, default=str, sort_keys=sort_keys)
    return bounds.joined(encoder.iterencode(value))  # each line grows by its depth, which its weight does not tell


def _raise_exception(message: Any) -> NoReturn:
    raise _Refusal(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
