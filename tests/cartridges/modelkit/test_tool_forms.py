"""The forms in which families of models write calls of tools: found in a template, held to, and taken apart."""

from typing import Any

import pytest

from cartdeck_modelkit.constraint.guidance import ConstraintMaker, GuidanceConstraint
from cartdeck_modelkit.constraint.token_table import TokenTable
from cartdeck_modelkit.dialogue.chat_template import ChatTemplate
from cartdeck_modelkit.dialogue.messages import read_dialogue
from cartdeck_modelkit.dialogue.tool_stream import CallSplitter, ToolCall
from cartdeck_modelkit.dialogue.tools import (
    BARE,
    LISTED,
    TAGGED,
    CallSyntax,
    ToolUse,
    call_grammar,
    fit_call_ids,
    read_tools,
    syntax_of,
)
from cartdeck_protocol.errors import CartdeckError

QWEN = """\
{%- if tools %}<|im_start|>system
Functions: {% for tool in tools %}{{ tool | tojson }}{% endfor %}
Answer with <tool_call>{"name": …, "arguments": …}</tool_call>.<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{%- endfor %}"""
LLAMA = """\
{%- if tools is not none %}Environment: ipython
{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}{% set f = m.tool_calls[0].function %}
{%- if f.name in builtin_tools or [] %}<|python_tag|>{% endif %}
{{- '{"name": "' + f.name + '", ' + '"parameters": ' }}{{ f.arguments | tojson }}}<|eot_id|>
{%- else %}<|start_header_id|>{{ m.role }}<|end_header_id|>{{ m.content }}{% endif %}{% endfor %}"""
MISTRAL = """\
{%- for m in messages %}
{%- if m.role == "user" %}
{%- if tools is not none and loop.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{{- "[INST] " + m.content + "[/INST]" }}
{%- elif m.tool_calls %}[TOOL_CALLS] [
{%- for call in m.tool_calls %}{% if call.id | length != 9 %}{{ raise_exception("ids have 9 characters") }}{% endif %}
{{- call.function | tojson }}{% endfor %}]
{%- elif m.role == "tool" %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception("ids have 9 characters") }}{% endif %}
{{- "[TOOL_RESULTS]" + m.content + m.tool_call_id + "[/TOOL_RESULTS]" }}
{%- endif %}{% endfor %}"""

SPECIAL = 257
HIDDEN_LIST, TAGGED_LLAMA = LISTED.behind(SPECIAL), BARE.behind(SPECIAL)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {}}}}}
    for name in ("f", "g")
]
F, G = '{"name": "f", "arguments": {"a": "}]</tool_call>["}}', '{"name": "g", "arguments": {"a": [1]}}'
CALLS = [ToolCall("f", '{"a": "}]</tool_call>["}'), ToolCall("g", '{"a": [1]}')]
F_LLAMA = F.replace("arguments", "parameters")


@pytest.fixture(scope="module")
def maker() -> ConstraintMaker:
    """On the 256 bytes, one token that ends the text and two of control, of which none shows in a text."""
    pieces = [*(bytes((byte,)) for byte in range(256)), b"", b"", b""]
    tokens = TokenTable(pieces=pieces, special=[256, 257, 258], end=[256], tokenize=lambda text: list(text.encode()))
    return ConstraintMaker(tokens)


def accepts(constraint: GuidanceConstraint, *parts: int | str) -> bool:
    """Whether the tokens and the bytes of the texts may come, and the answer may end there."""
    path = constraint.fork()
    for part in parts:
        for token in [part] if isinstance(part, int) else part.encode():
            if path.is_complete or not path.mask()[token // 8] >> (token % 8) & 1:
                return False
            path.accept(token)
    return path.is_complete or bool(path.mask()[256 // 8] & 1)


def taken_apart(answer: str, syntax: CallSyntax, cut: int) -> tuple[str, list[ToolCall]]:
    """The text and the calls of an answer: in two pieces, or by characters where `cut` is negative."""
    splitter = CallSplitter(syntax)
    found: list[Any] = []
    for piece in list(answer) if cut < 0 else [answer[:cut], answer[cut:]]:
        found.extend(splitter.push(piece))
    found.append(splitter.finish())
    return "".join(one for one in found if isinstance(one, str)), [one for one in found if isinstance(one, ToolCall)]


@pytest.mark.parametrize(
    ("source", "syntax"),
    [(QWEN, TAGGED), (LLAMA, BARE), (MISTRAL, LISTED), (MISTRAL + "{{ '[ARGS]' }}", None),
     (QWEN + "<function=name>", None), (QWEN + "<arg_key>", None)],
)  # fmt: skip
def test_the_form_of_a_family_is_found_in_its_template(source: str, syntax: CallSyntax | None) -> None:
    assert syntax_of(ChatTemplate(source)) is syntax


@pytest.mark.parametrize(
    ("syntax", "answer", "text", "calls"),
    [
        (TAGGED, f"Well, <tool_call>\n{F}\n</tool_call>\n<tool_call>{G}</tool_call>", "Well,", CALLS),
        (LISTED, f"Well, [TOOL_CALLS] [{F}, {G}]", "Well,", CALLS),
        (LISTED, f"[TOOL_CALLS][{F}]", "", CALLS[:1]),
        (LISTED, "See [TOOL_CALL] and [1]", "See [TOOL_CALL] and [1]", []),
        (HIDDEN_LIST, f" [{F},\n{G}]", "", CALLS),
        (HIDDEN_LIST, "Well, [1]", "Well, [1]", []),
        (BARE, f"\n{F_LLAMA}", "", CALLS[:1]),
        (TAGGED_LLAMA, F_LLAMA, "", CALLS[:1]),
        (BARE, f"No: {F_LLAMA}", f"No: {F_LLAMA}", []),
    ],
)
def test_calls_come_whole_and_never_as_text_wherever_the_answer_is_cut(
    syntax: CallSyntax, answer: str, text: str, calls: list[ToolCall]
) -> None:
    for cut in range(-1, len(answer)):
        found, called = taken_apart(answer, syntax, cut)
        assert (found.rstrip(), called) == (text, calls), cut  # white space before a call is nobody's


@pytest.mark.parametrize("syntax", [LISTED, HIDDEN_LIST])
def test_of_a_list_that_is_cut_off_the_whole_calls_remain(syntax: CallSyntax) -> None:
    answer = f"{syntax.opening} [{F}, {G}]"
    for end in range(len(syntax.opening), len(answer) - 1):
        text, calls = taken_apart(answer[:end], syntax, -1)
        assert not text.strip()
        assert calls == CALLS[: answer[:end].count(F) + answer[:end].count(G)]


def test_a_listed_call_is_given_before_the_list_ends() -> None:
    assert CallSplitter(LISTED).push(f"[TOOL_CALLS] [{F}") == CALLS[:1]


def test_answers_are_held_to_a_list_behind_its_mark(maker: ConstraintMaker) -> None:
    tools = read_tools(TOOLS)
    free = maker.from_lark(call_grammar(tools, LISTED, is_required=False))
    assert accepts(free, f"[TOOL_CALLS] [{F}, {G}]")
    assert accepts(free, f"[TOOL_CALLS][{F}]")
    assert accepts(free, "No [calls].")
    for wrong in ("[TOOL_CALLS] []", "[TOOL_CALLS] no", f"[TOOL_CALLS] [{F}", '[TOOL_CALLS] [{"name": "h"'):
        assert not accepts(free, wrong)
    held = maker.from_lark(call_grammar(tools[:1], LISTED, is_required=True))
    assert accepts(held, f"[TOOL_CALLS] [{F}]")
    assert not accepts(held, "No.")


def test_answers_are_held_to_a_list_behind_a_token_of_control(maker: ConstraintMaker) -> None:
    free = maker.from_lark(call_grammar(read_tools(TOOLS), HIDDEN_LIST, is_required=False))
    assert accepts(free, SPECIAL, f" [{F}, {G}]")
    assert accepts(free, " No [calls].")
    for wrong in ((258, f"[{F}]"), (f"[{F}]",), (SPECIAL, "No"), ("No", SPECIAL), (SPECIAL,), ()):
        assert not accepts(free, *wrong)
    held = maker.from_lark(call_grammar(read_tools(TOOLS), HIDDEN_LIST, is_required=True))
    assert accepts(held, SPECIAL, f"[{F}]")
    assert not accepts(held, "No")


def test_a_bare_call_may_stand_behind_its_token_of_control(maker: ConstraintMaker) -> None:
    free = maker.from_lark(call_grammar(read_tools(TOOLS), TAGGED_LLAMA, is_required=False))
    assert accepts(free, SPECIAL, F_LLAMA)
    assert accepts(free, F_LLAMA)
    assert accepts(free, "No {calls}.")
    assert not accepts(free, SPECIAL, "No")
    bare = maker.from_lark(call_grammar(read_tools(TOOLS), BARE, is_required=False))
    assert not accepts(bare, SPECIAL, F_LLAMA)
    assert not accepts(bare, ' {"no": "call"}')  # it would be taken for one


def holds(maker: ConstraintMaker, parameters: Any, arguments: str, *, syntax: CallSyntax = TAGGED) -> bool:
    """Whether a call that must be, of a tool with those parameters beside another tool, may have the arguments."""
    tools = read_tools([{"type": "function", "function": {"name": "f", "parameters": parameters}}, TOOLS[1]])
    constraint = maker.from_lark(call_grammar(tools, syntax, is_required=True))
    call = f'{{"name": "f", "{syntax.arguments_key}": {arguments}}}'
    return accepts(constraint, syntax.opening + (f"[{call}]" if syntax.is_list else call) + syntax.closing)


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"type": "object", "properties": {}}])
@pytest.mark.parametrize("syntax", [TAGGED, BARE, LISTED])
def test_a_tool_that_lists_no_arguments_is_called_without_any(
    maker: ConstraintMaker, parameters: Any, syntax: CallSyntax
) -> None:
    assert holds(maker, parameters, "{}", syntax=syntax)
    for wrong in ('{"a": 1}', '{"": {}}', "5", "null"):
        assert not holds(maker, parameters, wrong, syntax=syntax)


def test_a_call_has_no_arguments_but_those_that_its_tool_lists(maker: ConstraintMaker) -> None:
    listed: dict[str, Any] = {"properties": {"a": {"type": "integer"}, "b": {"type": "object"}}, "required": ["a"]}
    for parameters in (listed, {"type": "object", **listed, "description": "What for.", "title": "F"}):
        assert holds(maker, parameters, '{"a": 1}')
        assert holds(maker, parameters, '{"a": 1, "b": {"any": ["name"]}}')  # inside, nothing is closed
        assert not holds(maker, parameters, '{"a": 1, "c": 2}')
        assert not holds(maker, parameters, "{}")


@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": True},
        {"additionalProperties": {"type": "integer"}},
        {"patternProperties": {"^c$": {"type": "integer"}}},
        {"allOf": [{"properties": {"c": {"type": "integer"}}}]},
        {"required": ["a", "c"]},
    ],
)
def test_arguments_stay_open_where_the_tool_says_something_of_others(
    maker: ConstraintMaker, more: dict[str, Any]
) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}, **more}
    assert holds(maker, parameters, '{"a": 1, "c": 2}')


@pytest.mark.parametrize("required", [[["a"]], [{}], [5], "a", None])
def test_what_is_required_and_is_no_list_of_names_is_an_error_that_names_it(
    maker: ConstraintMaker, required: Any
) -> None:
    parameters = {"type": "object", "properties": {"a": {}}, "required": required}
    with pytest.raises(CartdeckError, match="for 'required'"):
        holds(maker, parameters, "{}")


def test_a_schema_that_has_an_address_keeps_its_references(maker: ConstraintMaker) -> None:
    parameters = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/f.json",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"type": "integer"}},
    }
    assert holds(maker, parameters, '{"a": 1}')
    assert not holds(maker, parameters, '{"a": "x"}')


@pytest.mark.parametrize("syntax", [TAGGED, BARE, LISTED])
def test_references_of_a_tools_parameters_lead_where_they_led(maker: ConstraintMaker, syntax: CallSyntax) -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "more": {"type": "array", "items": {"$ref": "#"}}},
        "$defs": {"A": {"type": "integer"}},
    }
    assert holds(maker, parameters, '{"a": 1, "more": [{"a": 2}, {"more": []}]}', syntax=syntax)
    for wrong in ('{"a": "x"}', '{"more": [{"a": "x"}]}', '{"more": [1]}', '{"b": 1}'):
        assert not holds(maker, parameters, wrong, syntax=syntax)
    two = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in ("f", "g")]
    maker.from_lark(call_grammar(read_tools(two), syntax, is_required=False))


@pytest.mark.parametrize("syntax", [TAGGED, BARE, LISTED, HIDDEN_LIST])
def test_a_tool_that_is_asked_for_by_its_name_is_called_once(maker: ConstraintMaker, syntax: CallSyntax) -> None:
    def answers(choice: Any) -> GuidanceConstraint:
        use = ToolUse.read(TOOLS, choice)
        grammar = call_grammar(use.callable, syntax, is_required=use.is_required, is_single=use.is_single)
        return maker.from_lark(grammar)

    call = (F_LLAMA if syntax is BARE else F).replace('"}]</tool_call>["', "1")
    one, two = (
        (f"[{call}]", f"[{call}, {call}]")
        if syntax.is_list
        else (call, f"{call}{syntax.closing}{syntax.opening}{call}")
    )
    start: tuple[int | str, ...] = (syntax.opening,) if syntax.token is None else (syntax.token,)
    named = answers({"type": "function", "function": {"name": "f"}})
    assert accepts(named, *start, one + syntax.closing)
    assert not accepts(named, *start, two + syntax.closing)
    assert accepts(answers("required"), *start, two + syntax.closing) == (syntax is not BARE)


def test_ids_of_calls_are_made_to_fit_a_template_that_wants_nine_characters() -> None:
    call = {"id": "call_0123456789abcdef", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]  # fmt: skip
    dialogue = read_dialogue({"messages": messages})
    template = ChatTemplate(MISTRAL)
    fit_call_ids(dialogue, ChatTemplate(QWEN))
    assert dialogue.messages[2]["tool_call_id"] == call["id"]
    fit_call_ids(dialogue, template)
    short = dialogue.messages[2]["tool_call_id"]
    assert dialogue.messages[1]["tool_calls"][0]["id"] == short
    assert f"sunny{short}[/TOOL_RESULTS]" in template.render(dialogue.messages)
    fit_call_ids(dialogue, template)
    assert dialogue.messages[2]["tool_call_id"] == short
