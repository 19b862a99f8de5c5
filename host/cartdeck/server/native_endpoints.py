"""Owns `POST /caps/call` and `POST /plans/run`: any cap, any plan, with all their events.

It does not know OpenAI's shapes, nor what caps do.
"""

import base64
import binascii
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal, cast

from pydantic import Field
from starlette.datastructures import UploadFile
from starlette.requests import Request

from cartdeck.events import Data, End, Log, Progress
from cartdeck.near import near_names
from cartdeck.plain import plain, result_record
from cartdeck.plans.run import PlanRun
from cartdeck.server.body import (
    FileItems,
    FilePieces,
    checked,
    form_parts,
    parse_json,
    read_form,
    read_json,
    sole_file,
)
from cartdeck.server.event_stream import EventStream, event
from cartdeck.server.fields import Plain
from cartdeck.server.json_response import json_response
from cartdeck.server.pace import Departure, paced
from cartdeck.server.plan_compiling import PlanCompiler
from cartdeck.server.plan_telling import plan_end, plan_event
from cartdeck.server.refusal import Refused
from cartdeck.server.service import Served, Service, collect_all
from cartdeck_protocol.errors import Code

SAYS_NOTHING_NEW: Final = frozenset({"list-models", "model-info", "architecture-info", "fit-model"})
"""Caps that may be called also where models have guards: no model answers there."""


class CapRequest(Plain):
    cap: Annotated[str, Field(min_length=1)]
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    stream: bool = True
    """Events as they come, or one record at the end."""


class PlanRequest(Plain):
    plan: str
    inputs: dict[str, Any] = Field(default_factory=dict[str, Any])
    on_error: Literal["fail", "absent"] = "fail"
    stream: bool = True


class NativeEndpoints:
    """The two, on one service."""

    def __init__(self, service: Service, plans: PlanCompiler) -> None:
        self._service = service
        self._plans = plans

    async def call(self, request: Request) -> Any:
        if request.headers.get("content-type", "").startswith("multipart/"):
            form = await read_form(request, self._service.options.limits)
            try:
                asked, arguments = self._read_call_form(*form_parts(form))
            except BaseException:
                await form.close()
                raise
            return await self._run(request, asked, arguments, close=form.close)
        asked = await read_json(request, CapRequest, self._service.options.limits)
        return await self._run(request, asked, decoded_arguments(asked.arguments), close=_nothing)

    async def _run(self, request: Request, asked: CapRequest, arguments: dict[str, Any], *, close: Any) -> Any:
        if asked.cap.removeprefix("cap:") not in SAYS_NOTHING_NEW:
            self._service.check_unguarded("/caps/call")
        served = self._service.call_cap(asked.cap, arguments, timeout_s=asked.timeout_s)
        if asked.stream:
            pieces = _call_pieces(served, close)
            return EventStream(pieces, cancel=served.cancel, comment_s=self._service.options.comment_s)
        try:
            [result] = await collect_all([served], request)
        finally:
            await close()
        definition = self._service.engine.router.route_text(asked.cap, arguments).definition
        return json_response(result_record(asked.cap, result, main=definition.main_output))

    def _read_call_form(
        self, texts: dict[str, Any], files: Mapping[str, Sequence[UploadFile]]
    ) -> tuple[CapRequest, dict[str, Any]]:
        """A form of `cap`, `arguments` (JSON), `timeout_s`, `stream`, and files under the names of arguments: several
        of one name where a sequence is taken."""
        fields = dict(texts)
        for name in sorted(fields.keys() - CapRequest.model_fields.keys()):
            near = near_names(name, CapRequest.model_fields)
            how = f'a text argument goes into the field arguments, as JSON ({{"{name}": …}}), and a file as a file part'
            message = f"{name} is no field of this form: {how} (curl: -F {name}=@FILE)."
            message += f" Near it: {', '.join(near)}." if near else ""
            raise Refused(400, Code.UNKNOWN_ARGUMENT.name, message, name)
        for name in ("arguments", "timeout_s", "stream"):
            if name in fields:
                fields[name] = parse_json(str(fields[name]).encode())
        asked = checked(CapRequest, fields)
        arguments = decoded_arguments(asked.arguments)
        for name, given in files.items():
            if name in arguments:
                message = f"{name} is given twice: in arguments and as a file."
                raise Refused(400, Code.BAD_ARGUMENT.name, message, name)
            argument = self._service.engine.router.route_text(asked.cap, arguments).definition.argument(name)
            if argument.is_sequence:
                arguments[name] = FileItems(argument, given)
            else:
                arguments[name] = FilePieces(sole_file(name, given))
        return asked, arguments

    async def run_plan(self, request: Request) -> Any:
        self._service.check_unguarded("/plans/run")
        asked = await read_json(request, PlanRequest, self._service.options.limits)
        inputs = decoded_arguments(asked.inputs)
        plan = await self._plans.compiled(asked.plan, inputs)
        run = PlanRun(self._service.engine, plan, inputs, on_error=asked.on_error)
        if asked.stream:
            pieces = self._plan_pieces(run)
            return EventStream(pieces, cancel=lambda _: run.cancel(), comment_s=self._service.options.comment_s)
        with self._service.journal.following("plan"):
            async with run:
                with Departure(request.receive, lambda _: run.cancel()):
                    result = await run.collect()
        return json_response(plan_end(result))

    async def _plan_pieces(self, run: PlanRun) -> AsyncGenerator[bytes]:
        """The plan's events by their names, and at last `end` with the outputs."""
        with self._service.journal.following("plan"):
            async with run, aclosing(paced(run, self._service.options.comment_s)) as batches:
                async for events in batches:
                    yield b"".join(plan_event(one) for one in events)
                last = event(plan_end(run.result), "end")
        yield last


async def _nothing() -> None:
    pass


def decoded_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON has them, {"base64": …} standing for bytes, also in a list. Raises Refused 400."""
    return {name: _decoded(name, value) for name, value in given.items()}


def _decoded(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(name, one) for one in cast("list[Any]", value)]
    if isinstance(value, dict) and list(cast("dict[str, Any]", value)) == ["base64"]:
        try:
            return base64.b64decode(cast("dict[str, Any]", value)["base64"], validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            message = f"{name} is no base64: {error}."
            raise Refused(400, Code.BAD_ARGUMENT.name, message, name) from None
    return cast("Any", value)


async def _call_pieces(served: Served, close: Any) -> AsyncGenerator[bytes]:
    """`progress`, `log`, `data` and at last `end`, each with what the event of that name holds."""
    try:
        async with aclosing(served.batches()) as batches:
            async for events in batches:
                yield b"".join(_call_event(one) for one in events)
    finally:
        await close()


def _call_event(one: Progress | Log | Data | End) -> bytes:
    match one:
        case Progress():
            record = {
                "fraction": one.fraction,
                "message": one.message,
                "phase": one.phase,
                "work": one.work,
                "total": one.total,
                "cartridge": one.cartridge,
            }
            return event(plain(record), "progress")
        case Log():
            return event({"level": one.level, "message": one.message, "cartridge": one.cartridge}, "log")
        case Data():
            return event({"output": one.output, **_value(one.value)}, "data")
        case End():
            return event({"progress": one.progress, "provenance": plain(one.provenance)}, "end")


def _value(value: Any) -> dict[str, Any]:
    """A piece of bytes as `text` where it is text, else as `base64`; an item as `item`."""
    if not isinstance(value, bytes):
        return {"item": plain(value)}
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return plain(value)
