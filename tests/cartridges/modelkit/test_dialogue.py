"""Dialogues, templates and tools, before any model: what is taken, what is refused by name, what text comes of it."""

import base64
import json
from typing import Any

import pytest

from cartdeck_modelkit.dialogue import template_bounds
from cartdeck_modelkit.dialogue.chat_template import ChatTemplate
from cartdeck_modelkit.dialogue.messages import read_dialogue
from cartdeck_modelkit.dialogue.tool_stream import CallSplitter, ToolCall
from cartdeck_modelkit.dialogue.tools import (
    BARE,
    TAGGED,
    call_grammar,
    choose_tools,
    explain_tools,
    read_tools,
    syntax_of,
)
from cartdeck_protocol.errors import CartdeckError, Code

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PIXEL = "data:image/png;base64," + base64.b64encode(b"pixels").decode()


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def refused(record: Any, **options: Any) -> CartdeckError:
    with pytest.raises(CartdeckError) as caught:
        read_dialogue(record, **options)
    return caught.value


def test_parts_become_one_text_with_a_mark_where_an_image_stands() -> None:
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    dialogue = read_dialogue(
        {"messages": [user([{"type": "text", "text": "See "}, image, {"type": "text", "text": "!"}])]}
    )
    assert dialogue.images == [b"pixels"]
    assert dialogue.messages == [{"role": "user", "content": f"See {dialogue.marker}!"}]
    assert dialogue.marker != read_dialogue({"messages": [user("a")]}).marker  # nobody can write it beforehand


def test_a_system_text_leads_a_dialogue_that_has_none() -> None:
    dialogue = read_dialogue({"messages": [user("Hi")]}, system="Be brief.")
    assert [message["role"] for message in dialogue.messages] == ["system", "user"]
    both = {"messages": [{"role": "developer", "content": "Be long."}, user("Hi")]}
    assert read_dialogue(both).messages[0] == {"role": "system", "content": "Be long."}
    assert refused(both, system="Be brief.").argument == "system"


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([], Code.EMPTY_INPUT),
        ([user("a"), "b"], Code.BAD_ARGUMENT),
        ([user("a"), {"role": "robot", "content": "b"}], Code.BAD_ARGUMENT),
        ([user("a"), user(None)], Code.BAD_ARGUMENT),
        ([user("a"), user(7)], Code.BAD_ARGUMENT),
        ([user("a"), {**user("b"), "colour": 1}], Code.BAD_ARGUMENT),
        ([user("a"), user([{"type": "text"}])], Code.BAD_ARGUMENT),
        ([user("a"), user([{"type": "input_audio", "input_audio": {}}])], Code.UNSUPPORTED),
        ([user("a"), {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
         Code.BAD_ARGUMENT),
    ],
)  # fmt: skip
def test_a_message_of_another_shape_is_refused_by_its_index(messages: Any, code: Code) -> None:
    error = refused({"messages": messages})
    assert error.code is code
    assert error.details.get("index") == (1 if messages else None)


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1/a.png", "https://example.org/a.png", "file:///etc/passwd", "/etc/passwd", "data:text/html,a",
     "data:image/png;base64,?", "ftp://a", ""],
)  # fmt: skip
def test_no_address_of_an_image_is_followed(address: str) -> None:
    error = refused({"messages": [user([{"type": "image_url", "image_url": {"url": address}}])]})
    assert error.code is Code.BAD_IMAGE


def test_a_record_that_is_no_dialogue_is_refused() -> None:
    for record in ({}, {"messages": {}}, [], "a", {"messages": [user("a")], "temperature": 1}):
        assert refused(record).code is Code.BAD_ARGUMENT


def test_a_template_makes_the_text_that_the_model_goes_on_from() -> None:
    template = ChatTemplate(CHATML)
    assert template.render([user("Hi")]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert not template.takes_tools


def test_a_template_that_takes_parts_alone_gets_parts() -> None:
    source = (
        "{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}[{{ part.text }}]{% endif %}"
    )
    assert ChatTemplate(source + "{% endfor %}{% endfor %}").render([user("Hi")]) == "[Hi]"


def test_a_template_has_what_templates_in_use_need() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content | trim }}{% endgeneration %}{% endfor %}{{ {'a': '<é>'} | tojson }}"
        "{{ eos_token }}"
        "{% if strftime_now('%Y') | length == 4 %}!{% endif %}"
    )
    rendered = ChatTemplate(source, bos="<s>", eos="</s>").render([user(" Hi "), user("no")])
    assert rendered == '<s>Hi{"a": "<é>"}</s>!'


def test_what_a_template_refuses_is_said_in_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(CartdeckError) as caught:
        template.render([user("a")])
    assert caught.value.code is Code.BAD_ARGUMENT
    assert "roles must alternate" in caught.value.message


@pytest.mark.parametrize(
    "source",
    ["{% for %}", "{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}",
     "{% include '/etc/passwd' %}", "{{ range(10000000) | list }}", "{{ 1 / 0 }}", "{{ nothing.there }}",
     "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "{{ 'a' * 999999999 }}",
     "{{ 9 ** 9 ** 9 }}", "{{ [0] * 99999 * 99999 }}"],
)  # fmt: skip
def test_a_template_reaches_nothing_and_its_faults_are_typed(source: str) -> None:
    with pytest.raises(CartdeckError) as caught:
        ChatTemplate(source).render([user("a")])
    assert (caught.value.code, caught.value.argument) == (Code.UNSUPPORTED, "chat-template")


def test_one_template_that_never_ends_takes_nothing_from_those_behind_it() -> None:
    endless = "{% for a in range(1999999) %}{{ messages[0].role }}{% endfor %}"
    with pytest.raises(CartdeckError, match="2,000,000 steps"):
        ChatTemplate(endless).render([{"role": "user", "content": "hi"}])
    for _ in range(3):
        half = ChatTemplate("{% for a in range(900000) %}{% endfor %}{{ messages[0].content }}")
        assert half.render([{"role": "user", "content": "hi"}]) == "hi"


def test_tools_are_read_and_a_wrong_one_is_refused_by_its_index() -> None:
    assert [tool.name for tool in read_tools([WEATHER])] == ["get_weather"]
    assert read_tools(None) == []
    for wrong in ({}, {"type": "function"}, {"type": "function", "function": {"name": "a b"}}, WEATHER):
        with pytest.raises(CartdeckError) as caught:
            read_tools([WEATHER, wrong])
        assert (caught.value.code, caught.value.details["index"]) == (Code.BAD_ARGUMENT, 1)
    loop = {"type": "function", "function": {"name": "f", "parameters": {"$ref": "#"}}}
    with pytest.raises(CartdeckError) as caught:
        read_tools([loop])
    assert (caught.value.code, caught.value.argument) == (Code.UNSUPPORTED_SCHEMA, "tools")


def test_a_choice_of_tools_is_what_openai_has() -> None:
    tools = read_tools([WEATHER])
    assert choose_tools(tools, None) == choose_tools(tools, "auto") == (tools, False)
    assert choose_tools(tools, "none") == ([], False)
    assert choose_tools(tools, "required") == (tools, True)
    assert choose_tools(tools, {"type": "function", "function": {"name": "get_weather"}}) == (tools, True)
    for wrong in ("other", {"function": {"name": "other"}}, 7):
        with pytest.raises(CartdeckError):
            choose_tools(tools, wrong)


def test_the_way_calls_are_written_is_found_in_the_template() -> None:
    assert syntax_of(ChatTemplate(CHATML)) is None
    assert syntax_of(ChatTemplate("{% if tools %}<tool_call> </tool_call>{% endif %}")) is TAGGED
    assert syntax_of(ChatTemplate('{% if tools %}ipython {"parameters": 1}{% endif %}')) is BARE
    assert syntax_of(ChatTemplate("{% if tools %}[TOOL]{% endif %}")) is None


def test_our_own_prompt_tells_of_tools_calls_and_results() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    messages = [user("Hi"), {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": "sunny"}]  # fmt: skip
    dialogue = read_dialogue({"messages": messages})
    explain_tools(dialogue, read_tools([WEATHER]))
    system, _, called, result = (message["content"] for message in dialogue.messages)
    assert json.dumps(WEATHER["function"]) in system
    assert called == '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert (dialogue.messages[3]["role"], result) == ("user", "<tool_result>\nsunny\n</tool_result>")


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>'
WHOLE = ToolCall("f", '{"a": "</tool_call>"}')


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_text_and_calls_are_told_apart_however_they_are_cut(size: int) -> None:
    answer = f"Well < {CALL}\n{CALL} done"
    splitter = CallSplitter(TAGGED)
    found: list[Any] = []
    for start in range(0, len(answer), size):
        found.extend(splitter.push(answer[start : start + size]))
    found.append(splitter.finish())
    text = "".join(part for part in found if isinstance(part, str))
    assert [part for part in found if isinstance(part, ToolCall)] == [WHOLE, WHOLE]
    assert text.split() == ["Well", "<", "done"]
    assert splitter.calls == 2


def test_a_call_that_is_cut_off_is_no_call_and_no_text() -> None:
    splitter = CallSplitter(TAGGED)
    assert splitter.push('a<tool_call>\n{"name": "f", "argu') == ["a"]
    assert splitter.finish() == ""
    begun = CallSplitter(TAGGED)
    assert begun.push("a <tool_") == ["a "]
    assert begun.finish(is_cut=True) == ""
    begun.push("a <")
    assert begun.finish() == "<"


def test_without_marks_the_whole_answer_is_a_call_or_none() -> None:
    splitter = CallSplitter(BARE)
    assert splitter.push(' {"name": "f", ') == []
    assert splitter.push('"parameters": {}}') == [ToolCall("f", "{}")]
    assert CallSplitter(BARE).push("It is {") == ["It is {"]


def test_the_grammar_of_calls_holds_every_tool() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    grammar = call_grammar(read_tools([WEATHER, other]), TAGGED, is_required=False)
    assert '"const": "get_weather"' in grammar
    assert '"const": "other"' in grammar
    assert call_grammar(read_tools([other]), BARE, is_required=True).startswith("start: body\n")


def again(made: str, *, start: str = "'x'", before: str = "") -> str:
    """A template that has `all.s`, which begins as `start`, become what `made` says, sixty times."""
    loop = f"{{% for i in range(60) %}}{before}{{% set all.s = {made} %}}{{% endfor %}}"
    return f"{{% set all = namespace(s={start}) %}}{loop}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'x'|center(999999999) }}",
        "{{ 'x'.ljust(999999999) }}",
        "{{ messages|tojson(indent=999999999) }}",
        "{{ range(50)|list|tojson(indent=99999)|length }}",
        "{{ (('%50000d' * 30) % ((1,) * 30))|length }}",
        "{{ ('{:50000}' * 30).format(*range(30))|length }}",
        "{{ range(50)|map('string')|map('center', 99999)|list|length }}",
        "{% for one in range(50)|map('string')|map('center', 99999) %}{{ loop.length }}{% endfor %}",
        again("all.s + all.s"),
        again("all.s ~ all.s"),
        again("t", before="{% set t %}{{ all.s }}{{ all.s }}{% endset %}"),
        again("all.s + all.s", start="['x']"),
        again("[all.s, all.s]|join"),
        again("[all.s] * 2") + "{{ all.s }}",
        again("'%s%s' % (all.s, all.s)"),
        again("'{0}{0}'.format(all.s)"),
        again("all.s.replace('x', 'xx')"),
        again("all.s|replace('x', 'xx')"),
        again("''.join([all.s, all.s])"),
        again("all.s|tojson", start="'\\\\'"),
        again("all.s * all.s", start="10"),
        "{% set wide = ['x' * 1000000] * 1000 %}{{ wide|join }}",
        "{% set wide = ['x' * 1000000] * 1000 %}{{ ''.join(wide|map('upper')) }}",
        "{% set wide = ['x' * 1000000] * 1000 %}{{ wide|string }}",
        "{% set wide = ['x' * 1000000] * 1000 %}{% for one in wide %}{{ one }}{% endfor %}",
        "{{ 'a'|batch(999999999, 'x')|list }}",
    ],
)
def test_a_template_that_fills_the_memory_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_bounds, "LONGEST_TEXT_CHARACTERS", 1_000_000)
    monkeypatch.setattr(template_bounds, "MOST_STEPS", 100_000)
    with pytest.raises(CartdeckError) as caught:
        ChatTemplate(source).render([{"role": "user", "content": "x=1234567"}])
    assert caught.value.code is Code.UNSUPPORTED
    assert any(why in caught.value.message for why in ("far too large", "more than 100,000 steps"))


def test_a_format_is_looked_at_in_time_by_its_length() -> None:
    template = ChatTemplate("{{ ('{' ~ ':' * 200000 ~ '}').format(1) }}")  # by the square it took a quarter of an hour
    with pytest.raises(CartdeckError) as caught:
        template.render([{"role": "user", "content": "x"}])
    assert caught.value.code is Code.UNSUPPORTED


def test_a_template_may_format_what_is_small() -> None:
    source = "{{ '%s %05d' % ('a', 1234567) }}{{ '%d'|format(3) }}{{ 'x'|center(3) }}{{ messages[0].content.strip() }}"
    source += "{{ messages[0].content.find('=', 200000) }}{{ {'a': [1]}|tojson(indent=2) }}"
    made = ChatTemplate(source).render([{"role": "user", "content": "x=1234567"}])
    assert made == 'a 12345673 x x=1234567-1{\n  "a": [\n    1\n  ]\n}'


def test_a_template_may_join_and_repeat_what_is_small() -> None:
    source = (
        "{% set all = namespace(s='', l=[]) %}{% for m in messages %}{% set all.s = all.s ~ m.role ~ loop.index %}"
        "{% set all.l = all.l + [m.content] %}{% endfor %}{% set t %}<{{ all.s }}>{% endset %}"
        "{{ t }}{{ all.l|join(', ') }}{{ '-'.join(all.l|map('upper')) }}{{ 'a-b'.replace('-', '+') }}"
        "{{ 'a b'|replace(' ', '_') }}{{ all.l }}{{ [1, 2]|sum }}{{ 2 ** 5 * 3 }}"
        "{{ 'a\nb'|indent(2) }}{{ '{}!'.format('c') }}"
        "{{ none }}{{ missing }}{{ true }}{{ messages[0]|tojson }}{{ 'a b'|wordwrap(1) }}"
    )
    made = ChatTemplate(source).render([{"role": "user", "content": "x"}, {"role": "user", "content": "y"}])
    shown = '{"role": "user", "content": "x"}'
    assert made == f"<user1user2>x, yX-Ya+ba_b['x', 'y']396a\n  bc!NoneTrue{shown}a\nb"
