"""Owns the start of a task whose first step runs now instead of in the loop's next turn.

It does not know what the task does. Most calls of a small cap are over after that step: they save a turn of the loop,
which is a system call and a tenth of a lone call's cost.
"""

import sys
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any


def start_at_once(loop: AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> "Task[None]":
    """A task of the running `loop`, already at its first wait or its end. Call it outside of any task."""
    if sys.version_info >= (3, 12):
        return Task(coroutine, loop=loop, name="call", eager_start=True)
    # Before 3.12 a task asks its loop for the first step as it is made: that one request is taken here.
    steps: list[tuple[Callable[[], None], Context]] = []
    taking: Any = loop

    def take(step: Callable[[], None], *, context: Context) -> None:
        steps.append((step, context))

    taking.call_soon = take
    try:
        task = Task(coroutine, loop=loop, name="call")
    finally:
        del taking.call_soon
    step, context = steps[0]
    context.run(step)
    return task
