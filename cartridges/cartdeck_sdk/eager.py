"""Owns the start of a task whose first step runs now instead of in the loop's next turn.

It does not know what the task does. Most calls of a small cap are over after that step: they save a turn of the loop,
which is a system call and a tenth of a lone call's cost.
"""

import sys
from asyncio import AbstractEventLoop, Handle, Task
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any


def start_at_once(loop: AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> "Task[None]":
    """A task of the running `loop`, already at its first wait or its end. Call it outside of any task."""
    if sys.version_info >= (3, 12):
        return Task(coroutine, loop=loop, name="call", eager_start=True)
    # Before 3.12 a task asks its loop for the first step as it is made: that one request is taken here. Others may come
    # in between, of what the collector happens to end just then.
    steps: list[tuple[Callable[..., object], Context]] = []
    taking: Any = loop
    call_soon = loop.call_soon

    def take(callback: Callable[..., object], *arguments: Any, context: Context | None = None) -> Handle | None:
        owner = getattr(callback, "__self__", None)
        if context is not None and isinstance(owner, Task) and owner.get_coro() is coroutine:
            steps.append((callback, context))
            return None
        return call_soon(callback, *arguments, context=context)

    taking.call_soon = take
    try:
        task = Task(coroutine, loop=loop, name="call")
    finally:
        del taking.call_soon
    step, context = steps[0]
    context.run(step)
    return task
