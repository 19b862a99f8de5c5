"""Owns the guards of one request: they are asked before it and about its answer, and what they say is carried out.

It does not know how a guard is asked (`question`), how its verdict is read (`verdict`), nor what shape the
answer has. A guard that gives no verdict is down; what that means is its rule's to say.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from cartdeck.catalog.guard import When
from cartdeck.server.guards.question import ASSISTANT, Turn, add_turn, question
from cartdeck.server.guards.verdict import Unreadable, Verdict, read_verdict
from cartdeck.server.models.directory import ServedGuard
from cartdeck.server.openai_api.text_answer import TextParts, Texts
from cartdeck.server.pace import Departure
from cartdeck.server.refusal import Refused
from cartdeck.server.service import Served, Service
from cartdeck_protocol.errors import CartdeckError, Code, ErrorClass, failure

CONTENT_FILTER: Final = "content_filter"
"""OpenAI's word for it: the code of an error, and the reason for which a text ends."""
GUARD_DOWN: Final = "GUARD_DOWN"
UNREADABLE: Final = "UNREADABLE"
"""Of a finding: what the guard wrote is no verdict. Else it has the code of the error."""
_RETRY_S: Final = 5
_LOGGER: Final = logging.getLogger("cartdeck.server")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one guard said of one text, and what follows. Without a verdict it was down, for that reason."""

    guard: ServedGuard
    when: When
    text_index: int
    """Which of the request's prompts, or of its answers."""
    verdict: Verdict | None
    reason: str = ""

    @property
    def action(self) -> str:
        """pass; flag or refuse; allow, of a guard that is down."""
        rule = self.guard.rule
        if self.verdict is None:
            return rule.when_down
        return "pass" if self.verdict.is_safe else rule.action

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"guard": self.guard.name, "when": self.when, "index": self.text_index}
        plain |= {"verdict": "down", "error": self.reason} if self.verdict is None else self.verdict.to_plain()
        return {**plain, "action": self.action}

    @property
    def text(self) -> str:
        """What the client is told of a refusal."""
        what = "request" if self.when == "before" else "answer"
        named = ", ".join(self.verdict.categories) if self.verdict is not None else ""
        return f"The {what} was refused by a guard of this server" + (f": {named}." if named else ".")


class Guarded:
    """One request, of one or several prompts, each with its turns. Without guards nothing of it does anything."""

    def __init__(self, service: Service, guards: Sequence[ServedGuard], dialogues: Sequence[Sequence[Turn]]) -> None:
        self._service = service
        self._guards = guards
        self._dialogues = dialogues
        self._open: set[Served] = set()
        self._is_left: str | None = None
        self.is_before = any("before" in one.rule.when for one in guards)
        after = [one.rule for one in guards if "after" in one.rule.when]
        self.is_after = bool(after)
        self.holds_back = any("refuse" in (rule.action, rule.when_down) for rule in after)
        """Nothing of an answer may go out before it was judged whole."""
        self._heard: dict[int, list[str]] = {}
        self.findings: list[Finding] = []

    @property
    def has_guards(self) -> bool:
        return bool(self._guards)

    def cancel(self, reason: str) -> None:
        """The client left: no guard is asked any more."""
        self._is_left = reason
        for one in self._open:
            one.cancel(reason)

    async def before(self, param: str) -> None:
        """Raises Refused 400 where a guard refuses the request, 503 where one is down that must not be."""
        guards = [one for one in self._guards if "before" in one.rule.when]
        asks = [
            self._ask(guard, turns, "before", index) for index, turns in enumerate(self._dialogues) for guard in guards
        ]
        for finding in await self._all(asks):
            if finding.action == "refuse":
                raise _refused(finding, param)
        self._check_present()  # else the model would be asked for nobody

    async def before_all(self, request: Request, param: str) -> None:
        """`before`, for a client that may leave."""
        if self._guards:
            with Departure(request.receive, self.cancel):
                await self.before(param)

    def lets_out(self, has_news: bool, texts: Texts, index: int = 0) -> bool:
        """Whether the news in `texts` may go out now; what is judged behind that is remembered."""
        if not has_news or self.holds_back:
            return False
        if self.is_after:
            heard = self._heard.setdefault(index, [""] * len(texts.parts))
            for place, part in enumerate(texts.parts):
                heard[place] += _said(part)
        return True

    async def after(self, texts: Texts, provenance: dict[str, Any], index: int = 0) -> None:
        """Judge the answers to one prompt: one that is refused is emptied, and ends for that reason.

        Raises Refused 503 where a guard is down that must not be.
        """
        guards = [one for one in self._guards if "after" in one.rule.when]
        first = index * len(texts.parts)
        heard = self._heard.get(index, [""] * len(texts.parts))
        said = [heard[place] + _said(part) for place, part in enumerate(texts.parts)]
        asks = [
            self._ask(guard, _with_answer(self._dialogues[index], text), "after", first + place)
            for place, text in enumerate(said)
            if text
            for guard in guards
        ]
        for finding in await self._all(asks):
            if finding.action == "refuse":
                if finding.verdict is None:
                    raise _refused(finding, None)
                part = texts.parts[finding.text_index - first]
                part.withhold(CONTENT_FILTER, part.refusal or finding.text)
        if self.findings:
            own = range(first, first + len(texts.parts))
            provenance["guards"] = [
                one.to_plain()
                for one in self.findings
                if (one.text_index == index if one.when == "before" else one.text_index in own)
            ]

    async def after_all(self, request: Request, texts: Texts, provenance: dict[str, Any], index: int = 0) -> None:
        """`after`, for a client that may leave."""
        if self._guards:
            with Departure(request.receive, self.cancel):
                await self.after(texts, provenance, index)

    async def _all(self, asks: Sequence[Awaitable[Finding]]) -> list[Finding]:
        found = list(await asyncio.gather(*asks))
        self.findings += found
        return found

    async def _ask(self, guard: ServedGuard, turns: Sequence[Turn], when: When, index: int) -> Finding:
        """Raises CANCELLED when the client left: a guard that was not heard to the end is not down for that."""
        try:
            verdict = await self._verdict(guard, turns, when)
        except CartdeckError as error:
            self._check_present()
            return self._down(Finding(guard, when, index, None, error.code_name), error.message)
        except Unreadable as unread:
            return self._down(Finding(guard, when, index, None, UNREADABLE), str(unread))
        self._service.count_verdict(guard.name, when, verdict)
        return Finding(guard, when, index, verdict)

    async def _verdict(self, guard: ServedGuard, turns: Sequence[Turn], when: When) -> Verdict:
        """Raises the call's error, and Unreadable."""
        self._check_present()
        asked = question(guard, turns, when)
        served = self._service.call_model(guard.model, guard.kind, asked, timeout_s=guard.rule.timeout_s)
        self._open.add(served)
        try:
            result = await served.collect()
        finally:
            self._open.discard(served)
        tokens = [one for one in result.items_of("events") if one.get("type") == "token"]
        is_cut = result.provenance.get("finish_reason") == "length"
        return read_verdict(guard.rule, result.text, tokens=tokens, is_cut=is_cut)

    def _down(self, finding: Finding, message: str) -> Finding:
        name = finding.guard.name
        if self._service.count_verdict(name, finding.when, None, message):
            _LOGGER.warning("the guard %s gives no verdict: %s", name, message)
        return finding

    def _check_present(self) -> None:
        """Raises CANCELLED when the client left."""
        if self._is_left is not None:
            raise failure(Code.CANCELLED, self._is_left)


def _with_answer(turns: Sequence[Turn], text: str) -> list[Turn]:
    whole = list(turns)
    add_turn(whole, Turn(ASSISTANT, text))
    return whole


def _said(part: TextParts) -> str:
    """All that an answer says: its text, and the calls of tools that it makes."""
    calls = [json.dumps([one.get("name"), one.get("arguments")], ensure_ascii=False) for one in part.calls]
    return "".join(part.text) + "".join(f"\n{one}" for one in calls)


def _refused(finding: Finding, param: str | None) -> Refused:
    if finding.verdict is None:
        message = "A guard of this server gives no verdict now, and without one nothing is answered."
        headers = (("retry-after", str(_RETRY_S)),)
        details: Mapping[str, Any] = {"reason": finding.reason, "retry_after_s": _RETRY_S}
        return Refused(503, GUARD_DOWN, message, None, ErrorClass.RESOURCE.value, headers, details)
    details = {"categories": list(finding.verdict.categories), "index": finding.text_index}
    return Refused(400, CONTENT_FILTER, finding.text, param, details=details)


async def while_waiting(work: Awaitable[None], interval_s: float) -> AsyncGenerator[bytes]:
    """An empty piece of a stream every `interval_s` until the work is done. Raises its error; leaving it ends it."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=interval_s))[0]:
            yield b""
        task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
