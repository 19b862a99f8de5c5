"""Owns naps at random: short sleeps where threads, tasks and processes meet, so that an order that is rare comes often.

It does not know the tests. Every process of one environment loads it at its start (see `run_jitter.py`), cartridges
too, which inherit nothing. Standard library only; a module is changed when it is first imported, never imported for it.
"""

import importlib.abc
import importlib.machinery
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

LONGEST: Final = 10
"""Times the mean: no nap is longer, for tests outwait limits."""

# Module -> where in it a nap may be taken, before and after, and how much more seldom than elsewhere.
PLACES: Final[dict[str, tuple[tuple[str, float], ...]]] = {
    "asyncio.base_events": (("BaseEventLoop.call_soon_threadsafe", 1.0), ("BaseEventLoop._run_once", 0.1)),
    "asyncio.selector_events": (
        ("_SelectorSocketTransport.write", 0.2),
        ("_SelectorSocketTransport.close", 0.5),
    ),
    "asyncio.unix_events": (("_UnixWritePipeTransport.write", 0.2),),
    "concurrent.futures._base": (("Future.set_result", 1.0), ("Future.set_exception", 1.0)),
    "os": tuple((name, 0.15) for name in ("write", "kill", "rename", "replace", "unlink", "waitpid")),
    "queue": (("Queue.put", 0.5),),
    "socket": (("socket.close", 0.3),),
    "subprocess": (("Popen.__init__", 0.5),),
    "threading": (
        ("Thread.start", 1.0),
        ("Thread.run", 1.0),
        ("Event.set", 1.0),
        ("Condition.notify", 0.3),
    ),
}

_sleep: Final = time.sleep


class Napper:
    """Draws whether to sleep, and how long."""

    def __init__(self, probability: float, mean_s: float, seed: int) -> None:
        self._random = random.Random(seed)
        self._probability = probability
        self._mean_s = mean_s

    def nap(self, rarity: float = 1.0) -> None:
        """Now and then a sleep of about `mean_s`."""
        if self._random.random() < self._probability * rarity:
            _sleep(min(self._random.expovariate(1 / self._mean_s), LONGEST * self._mean_s))

    def around(self, function: Callable[..., Any], rarity: float) -> Callable[..., Any]:
        """`function`, with a nap before it and one after."""

        def call(*arguments: Any, **named: Any) -> Any:
            self.nap(rarity)
            try:
                return function(*arguments, **named)
            finally:
                self.nap(rarity)

        return call

    def change(self, module: ModuleType) -> None:
        """Puts naps around the module's `PLACES`."""
        for path, rarity in PLACES[module.__name__]:
            owner: Any = module
            *outer, name = path.split(".")
            for part in outer:
                owner = getattr(owner, part, None)
            if hasattr(owner, name):
                setattr(owner, name, self.around(getattr(owner, name), rarity))


class _Watcher(importlib.abc.MetaPathFinder):
    """Changes a module of `PLACES` as soon as somebody imports it."""

    def __init__(self, napper: Napper) -> None:
        self._napper = napper
        self._awaited = set(PLACES)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._awaited:
            return None
        self._awaited.discard(fullname)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._napper.change(module)

        spec.loader.exec_module = exec_module
        return spec

    def change_what_is_there(self) -> None:
        for name in sorted(self._awaited & set(sys.modules)):
            self._awaited.discard(name)
            self._napper.change(sys.modules[name])


def begin(
    probability: float, mean_s: float, *, switch_s: float | None = None, seed: int | None = None, run: int | None = None
) -> None:
    """Naps from now on, in this process: with `probability` at a place, of `mean_s` on average.

    `switch_s` is how long a thread keeps the interpreter while another wants it. A `seed` repeats the draws, not the
    order of threads. `run` is the process for whose sake it is done: without it nothing is.
    """
    if run is not None:
        try:
            os.kill(run, 0)
        except OSError:
            return
    watcher = _Watcher(Napper(probability, mean_s, int.from_bytes(os.urandom(8)) if seed is None else seed))
    watcher.change_what_is_there()
    sys.meta_path.insert(0, watcher)
    if switch_s is not None:
        sys.setswitchinterval(switch_s)
