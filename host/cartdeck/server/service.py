"""Owns what a server's endpoints share: the engine, the directory, the limits, and calls on behalf of a client.

It does not know HTTP but for the word that a client went away.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeGuard

from pydantic import BaseModel
from starlette.requests import Request

from cartdeck.calls.call import Call
from cartdeck.catalog.entry import Capability
from cartdeck.catalog.schedule import Standing
from cartdeck.engine import Engine
from cartdeck.events import Data, Event, Result
from cartdeck.pool.priority import Priority
from cartdeck.server.external.asking import asked_of
from cartdeck.server.external.call import ExternalCall
from cartdeck.server.external.servers import Servers
from cartdeck.server.external.watch import WatchedExternal
from cartdeck.server.fields import as_record
from cartdeck.server.guards.verdict import Verdict, VerdictTally
from cartdeck.server.live.call_watch import WatchedCall
from cartdeck.server.live.journal import Journal
from cartdeck.server.live.log_tails import LogTails
from cartdeck.server.metrics import Metrics
from cartdeck.server.models.directory import Kind, ModelDirectory, ServedGuard, ServedModel
from cartdeck.server.models.model_state import ModelStates, is_about_loading, settle
from cartdeck.server.models.origins import Origins
from cartdeck.server.options import ServerOptions
from cartdeck.server.pace import Departure, paced
from cartdeck.server.refusal import Refused
from cartdeck_protocol.errors import CartdeckError, Code, failure

KEEP_BYTES: Final = 256 * 1024 * 1024
"""How much output a whole answer may hold; nothing is kept of a stream, whose events are taken one by one."""
_DOWNLOAD: Final = "cap:download-model"


class Service:
    """One server's possessions. `is_stopping` says that no new request is taken."""

    def __init__(self, engine: Engine, directory: ModelDirectory, options: ServerOptions) -> None:
        self.engine = engine
        self.directory = directory
        self.options = options
        self.metrics = Metrics(engine)
        self.states = ModelStates()
        self.journal = Journal()
        self.origins = Origins(engine.is_loaded)
        self.servers = Servers()
        self.tails = LogTails()
        self.open_requests = 0
        self.is_stopping = False
        self.started_s = time.time()
        self.schedules: dict[str, Standing] = {}
        """How the windows of models stand, by the models' names."""
        self.guards: dict[str, VerdictTally] = {}
        """The guards that are in use, and what they said so far."""

    def call(
        self,
        kind: Kind,
        model_name: str,
        arguments: Mapping[str, Any],
        *,
        form: BaseModel | None = None,
        needs: Mapping[str, Capability] | None = None,
        priority: Priority | None = None,
    ) -> "Served":
        """A call of the model of that name; nothing runs before it is used. `form` is the request as it was written,
        for a model that another server answers for; `needs` has its fields that ask for more than the kind says. It is
        of the model's own class unless another `priority` is given.

        Raises MODEL_NOT_FOUND, or UNSUPPORTED for what the model is not made for.
        """
        model, needs = self.directory.find(model_name, kind), needs or {}
        if (field := model.lacks(needs)) is not None:
            can = ", ".join(sorted(model.capabilities or ()))
            message = f"{field} asks for {needs[field]}, which {model.name} cannot do; the catalog has it for: {can}."
            raise failure(Code.UNSUPPORTED, message, argument=field)
        able = tuple(one for one in model.stand_ins if one.lacks(needs) is None)
        return self.call_model(replace(model, stand_ins=able), kind, arguments, form=form, priority=priority)

    def call_model(
        self,
        model: ServedModel,
        kind: Kind,
        arguments: Mapping[str, Any],
        *,
        form: BaseModel | None = None,
        timeout_s: float | None = None,
        priority: Priority | None = None,
    ) -> "Served":
        """A call of a model that was found, or of one that clients do not see."""
        ways = [Way(one.cap(kind), one.arguments_with(arguments), one, kind, form) for one in (model, *model.stand_ins)]
        return Served(self, ways, timeout_s=timeout_s, priority=priority)

    def call_cap(self, cap: str, arguments: Mapping[str, Any], *, timeout_s: float | None = None) -> "Served":
        """A call of any cap, of no model in particular."""
        return Served(self, [Way(cap, arguments)], timeout_s=timeout_s)

    async def close(self) -> None:
        """End what still runs, with an error that says so."""
        self.servers.stop()
        await self.engine.close()

    def count_verdict(self, guard: str, when: str, verdict: Verdict | None, reason: str = "") -> bool:
        """Count what a guard said; without a verdict it is down for that reason. Whether it was not before."""
        word = "down" if verdict is None else "safe" if verdict.is_safe else "unsafe"
        self.metrics.verdicts.labels(guard, when, word).inc()
        return self.guards.setdefault(guard, VerdictTally()).count(verdict, reason)

    def check_unguarded(self, path: str) -> None:
        """Raises Refused 403 for a path that asks no guards, where models have some."""
        if self.directory.is_guarded and not self.options.allow_unguarded:
            message = f"{path} asks no guards, and models here have some; --allow-unguarded opens it."
            raise Refused(403, "GUARDED", message)

    def check_open(self) -> None:
        """Raises ABORTED while the server ends, QUEUE_FULL when it holds all the requests that it takes."""
        if self.is_stopping:
            raise failure(Code.ABORTED, "The server is being stopped.", details={"retry_after_s": 5.0})
        if self.open_requests > self.options.requests:  # the one that asks is among them
            message = f"{self.options.requests} requests are open, and no more are taken."
            raise failure(Code.QUEUE_FULL, message, details={"retry_after_s": 1.0})


@dataclass(frozen=True, slots=True)
class Way:
    """One way to answer a request: a cap and its arguments, of a model or of none in particular."""

    cap: str
    arguments: Mapping[str, Any]
    model: ServedModel | None = None
    kind: Kind | None = None
    form: BaseModel | None = None

    def elsewhere(self, service: Service, *, is_stream: bool, timeout_s: float | None) -> ExternalCall | None:
        """The call, where another server answers for the model."""
        model = self.model
        if model is None or model.place is None or self.kind is None:
            return None
        asked = asked_of(self.kind, model, self.form, self.arguments, is_stream=is_stream)
        return WatchedExternal(
            service.servers, model.place, asked, timeout_s=timeout_s, journal=service.journal, model=model.name
        )


class Served:
    """One call on behalf of a client: its events or its result, counted, with the model's state kept.

    Of several ways the first is taken; a model that cannot be loaded makes way for the next, before anything came.
    """

    def __init__(
        self,
        service: Service,
        ways: Sequence[Way],
        *,
        timeout_s: float | None = None,
        priority: Priority | None = None,
    ) -> None:
        """`priority` is in the place of each model's own class."""
        limit_s = service.options.limits.call_s
        if limit_s is not None:
            timeout_s = limit_s if timeout_s is None else min(timeout_s, limit_s)
        self._service = service
        self._way, *self._others = ways
        self._first = self._way
        self._timeout_s = timeout_s
        self._priority = priority
        self._call: Call | ExternalCall | None = None
        self._asked_s = time.monotonic()
        self._has_output = False

    @property
    def guards(self) -> Sequence[ServedGuard]:
        """Of the model that was asked for; those of one that stands in for it have no say."""
        return () if self._first.model is None else self._first.model.guards

    @property
    def _model(self) -> ServedModel | None:
        return self._way.model

    def _open(self, keep_bytes: int) -> Call | ExternalCall:
        way = self._way
        elsewhere = way.elsewhere(self._service, is_stream=not keep_bytes, timeout_s=self._timeout_s)
        if elsewhere is not None:
            self._call = elsewhere
            return elsewhere
        return self._open_cap(way.cap, way.arguments, keep_bytes)

    def _open_cap(self, cap: str, arguments: Mapping[str, Any], keep_bytes: int) -> Call:
        service, way = self._service, self._way
        self._call = WatchedCall(
            service.engine,
            cap,
            arguments,
            timeout_s=self._timeout_s,
            keep_bytes=keep_bytes,
            journal=service.journal,
            tails=service.tails,
            model=None if way.model is None else way.model.name,
        )
        if self._priority is not None:
            self._call.priority = self._priority
        elif way.model is not None:
            self._call.priority = way.model.priority
        return self._call

    def _takes_next_way(self, error: CartdeckError) -> bool:
        """Whether there is one, and the error is of a kind that another model may not have."""
        if self._has_output or not self._others:
            return False
        if error.code is not Code.RATE_LIMITED and not is_about_loading(error):
            return False
        self._way = self._others.pop(0)
        return True

    def cancel(self, reason: str) -> None:
        """End the call, if it runs."""
        if self._call is not None:
            self._call.cancel(reason)

    @property
    def provenance(self) -> dict[str, Any]:
        """What the end said, once all events were taken."""
        assert self._call is not None
        return self._told(self._call.result.provenance)

    def _told(self, provenance: dict[str, Any]) -> dict[str, Any]:
        """The provenance, with the name of a model that stood in for the one asked for."""
        first, model = self._first.model, self._way.model
        if first is not None and model is not None and model.name != first.name:
            provenance["stood_in"] = {"for": first.name, "model": model.name}
        return provenance

    async def _obtained(self) -> AsyncGenerator[list[Event]]:
        """Empty lists while the files come that are not loaded yet, which are those of the first download, or else the
        call fails with HASH_MISMATCH."""
        way, origins = self._way, self._service.origins
        if way.model is None:
            return
        arguments = way.model.arguments_with({})
        for pin in [one for one in way.model.pins if origins.is_due(one, way.cap, arguments)]:
            details = b""
            async with (
                self._open_cap(_DOWNLOAD, {"model": pin.spec}, 0) as call,
                aclosing(paced(call, self._service.options.comment_s)) as batches,
            ):
                async for events in batches:
                    details += b"".join(one.value for one in events if _is_of_details(one))
                    yield []
            spec = await origins.settle(pin, json.loads(details))
            self._way = replace(self._way, arguments=pin.applied(self._way.arguments, spec))

    async def batches(self) -> AsyncGenerator[list[Event]]:
        """The events as they come, several at a time; an empty list whenever nothing came for a while. Leaving it
        cancels the call. Raises the call's error."""
        while True:
            try:
                async with aclosing(self._batches_of_way()) as batches:
                    async for events in batches:
                        yield events
                return
            except CartdeckError as error:
                if not self._takes_next_way(error):
                    raise

    async def _batches_of_way(self) -> AsyncGenerator[list[Event]]:
        state = None if self._model is None else self._service.states.begin(self._model.name)
        error: CartdeckError | None = None
        is_whole = False
        try:
            async with aclosing(self._obtained()) as steps:
                async for nothing in steps:
                    yield nothing
            async with self._open(0) as call, aclosing(paced(call, self._service.options.comment_s)) as batches:
                async for events in batches:
                    if not self._has_output and any(isinstance(event, Data) for event in events):
                        self._note_output()
                    yield events
            is_whole = True
        except CartdeckError as failed:
            error = failed
            raise
        finally:
            if state is not None:
                if not is_whole and error is None:
                    error = failure(Code.CANCELLED, "the client went away")
                settle(state, error, has_output=self._has_output)
        self._count(call.result.provenance)

    async def collect(self) -> Result:
        """The whole result. Raises the call's error."""
        while True:
            try:
                return await self._collect_way()
            except CartdeckError as error:
                if not self._takes_next_way(error):
                    raise

    async def _collect_way(self) -> Result:
        state = None if self._model is None else self._service.states.begin(self._model.name)
        error: CartdeckError | None = failure(Code.CANCELLED, "the client went away")
        try:
            async with aclosing(self._obtained()) as steps:
                async for _ in steps:
                    pass
            async with self._open(KEEP_BYTES) as call:
                result = await call.collect()
            error = None
        except CartdeckError as failed:
            error = failed
            raise
        finally:
            if state is not None:
                settle(state, error, has_output=False)
        self._count(self._told(result.provenance))
        return result

    def _note_output(self) -> None:
        self._has_output = True
        if self._model is not None:
            waited_s = time.monotonic() - self._asked_s
            self._service.metrics.first_token.labels(_label(self._model)).observe(waited_s)

    def _count(self, provenance: Mapping[str, Any]) -> None:
        usage, timing = as_record(provenance.get("usage")), as_record(provenance.get("timing"))
        if self._model is None or not usage:
            return
        metrics, name = self._service.metrics, _label(self._model)
        made = int(usage.get("completion_tokens") or 0)
        metrics.tokens.labels(name, "prompt").inc(int(usage.get("prompt_tokens") or 0))
        metrics.tokens.labels(name, "completion").inc(made)
        if made > 1 and timing.get("first_token_s") is not None:
            before_s = sum(float(timing.get(part) or 0) for part in ("obtain_s", "load_s", "first_token_s"))
            if (spent_s := float(timing.get("total_s") or 0) - before_s) > 0:
                metrics.speed.labels(name).observe((made - 1) / spent_s)


class Cancellable(Protocol):
    """What can be given up: a call, or those who are asked about it."""

    def cancel(self, reason: str) -> None: ...


def cancelling(calls: Sequence[Cancellable]) -> Callable[[str], None]:
    """What cancels all of these calls."""

    def cancel(reason: str) -> None:
        for one in calls:
            one.cancel(reason)

    return cancel


async def collect_all(calls: Sequence[Served], request: Request) -> list[Result]:
    """The results of calls that run side by side. A client that goes away cancels them, and so does the first that
    fails: its error is raised when all have ended."""
    cancel = cancelling(calls)
    with Departure(request.receive, cancel):
        if len(calls) == 1:
            return [await calls[0].collect()]
        tasks = [asyncio.ensure_future(one.collect()) for one in calls]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            cancel("another part of the request failed")
            await asyncio.wait(tasks)
        failed = next((task for task in done if task.exception() is not None), None)
        for task in tasks:
            task.exception()  # looked at: what came of the cancel is nobody's news
        if failed is not None:
            failed.result()
        return [task.result() for task in tasks]


def _is_of_details(event: Event) -> TypeGuard[Data]:
    return isinstance(event, Data) and event.output == "details"


def _label(model: ServedModel) -> str:
    """What figures call the model: those that clients name by specs share one word, as there may be any number."""
    return model.name if model.is_listed else "other"
