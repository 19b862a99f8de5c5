"""Owns what a guard is asked: the dialogue as it is shown to it, and the arguments of its cap.

It does not know what becomes of the answer. Everything that a client wrote is shown, whoever it says has said it: what
stands in a system message, or in the result of a tool, is the user's to the guard.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cartdeck.catalog.guard import GuardFormat, When
from cartdeck.server.fields import as_list, as_record
from cartdeck.server.guards.verdict import verdict_schema
from cartdeck.server.models.directory import Kind, ServedGuard

USER: Final = "user"
ASSISTANT: Final = "assistant"
_SPEAKERS: Final = {USER: "User", ASSISTANT: "Agent"}
_MOST_TOKENS: Final = {GuardFormat.SHIELDGEMMA: 4, GuardFormat.JSON: 512}
"""Of a verdict; 128 of the others, as their cards have it."""
_CONTROL: Final = re.compile(r"<(?=[|/]?[A-Za-z_][\w-]*[|]?>)|<(?=[|\uff5c])|\[(?=/?[A-Z][A-Z_]+\])")
"""Before a name that may be a token of control: it would end the question, where it is read as one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said, until the other did."""

    role: str
    text: str


def turns_of(messages: Iterable[Mapping[str, Any]]) -> list[Turn]:
    """A dialogue in OpenAI's shape as turns: the user's and the assistant's, by turns, beginning with the user's."""
    turns: list[Turn] = []
    for message in messages:
        role = ASSISTANT if message.get("role") == ASSISTANT else USER
        add_turn(turns, Turn(role, _text_of(message)))
    return turns


def add_turn(turns: list[Turn], turn: Turn) -> None:
    """Behind the others, or as a part of the last one where that is of the same side."""
    if not turns and turn.role != USER:
        turns.append(Turn(USER, ""))
    if turns and turns[-1].role == turn.role:
        turn = Turn(turn.role, "\n\n".join(one for one in (turns.pop().text, turn.text) if one))
    turns.append(turn)


def _text_of(message: Mapping[str, Any]) -> str:
    """All that a message says; images say nothing here."""
    texts: list[str] = []
    for part in as_list(message.get("content")):
        texts.append(part if isinstance(part, str) else str(as_record(part).get("text") or ""))
    if message.get("tool_calls"):
        texts.append(json.dumps(message["tool_calls"], ensure_ascii=False, default=str))
    return "\n".join(one for one in texts if one)


def question(guard: ServedGuard, turns: Sequence[Turn], when: When) -> dict[str, Any]:
    """The arguments of the cap by which the guard is asked. `turns` end with the user's before a request, with the
    assistant's after it."""
    rule = guard.rule
    template = (rule.answer_prompt if when == "after" else None) or rule.prompt
    if template is None:
        messages = [{"role": turn.role, "content": _disarmed(turn.text)} for turn in turns]
        arguments: dict[str, Any] = {"messages": {"messages": messages}}
    else:
        text = template.format(**_values(turns, when))
        arguments = {"prompt": text}
        if guard.kind is Kind.CHAT:
            arguments = {"messages": {"messages": [{"role": USER, "content": text}]}}
    arguments |= {"temperature": 0, "max-tokens": _MOST_TOKENS.get(rule.format, 128)}
    if rule.format is GuardFormat.SHIELDGEMMA:
        arguments |= {"logprobs": True, "top-logprobs": 20}
    elif rule.format is GuardFormat.JSON:
        arguments["json-schema"] = verdict_schema(rule)
    return arguments


def _values(turns: Sequence[Turn], when: When) -> dict[str, str]:
    said = [one for one in turns if one.role == USER]
    dialogue = "\n\n".join(f"{_SPEAKERS[turn.role]}: {_disarmed(turn.text)}" for turn in turns)
    return {
        "prompt": _disarmed(said[-1].text if said else ""),
        "answer": _disarmed(turns[-1].text) if when == "after" else "",
        "dialogue": dialogue,
        "role": _SPEAKERS[ASSISTANT if when == "after" else USER],
    }


def _disarmed(text: str) -> str:
    """A text in which no token of control is named."""
    return _CONTROL.sub(lambda found: f"{found[0]} ", text)
