"""Owns what a cartridge's author registers: handlers by cap alias, work at start and stop.

It does not know the wire. The manifest beside the package is the one source of definitions and defaults.
"""

from collections.abc import Awaitable, Callable, Iterable
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from cartdeck_protocol.caps import CapDefinition, Manifest
from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk.manifest_file import read_manifest
from cartdeck_sdk.standard import STANDARD_HANDLERS

Handler = Callable[..., Any]
Hook = Callable[[], Awaitable[None]]
HandlerT = TypeVar("HandlerT", bound=Handler)


class Registration:
    """One handler and the definition that it serves; what each call would find out again is found out here."""

    __slots__ = ("definition", "function", "is_coroutine", "required", "streamed")

    def __init__(self, definition: CapDefinition, function: Handler) -> None:
        self.definition = definition
        self.function = function
        self.is_coroutine = iscoroutinefunction(function)
        arguments = definition.arguments.values()
        self.required = frozenset(argument.name for argument in arguments if argument.required)
        self.streamed = tuple(argument for argument in arguments if argument.is_stream or argument.is_sequence)
        """The arguments that the handler takes as they come."""


class Cartridge:
    """A program that serves caps. `package` names the importable package that holds `manifest.json`."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.manifest_bytes = read_manifest(package)
        self.manifest = Manifest.from_json(self.manifest_bytes)
        self.registrations: dict[str, Registration] = {}
        self.start_hooks: list[Hook] = []
        self.stop_hooks: list[Hook] = []

    def handles(self, alias: str, *, needs: Iterable[str] = ()) -> Callable[[HandlerT], HandlerT]:
        """Register the handler of a cap: `async def` runs on the loop, `def` in a worker thread.

        `needs` names the arguments that the handler reads without looking for None: each must be required or have a
        default in the manifest, else the cartridge does not start (HANDLER_FAILED names the cap and the argument).
        """
        definition = next((cap for cap in self.manifest.caps if cap.alias == alias), None)
        if definition is None:
            served = ", ".join(cap.alias for cap in self.manifest.caps)
            raise failure(Code.HANDLER_FAILED, f"{self.package} handles {alias}, but its manifest serves: {served}")
        for name in needs:
            argument = definition.arguments.get(name)
            if argument is None or not (argument.required or argument.has_default):
                state = "does not define it" if argument is None else "gives it no default"
                raise failure(
                    Code.HANDLER_FAILED,
                    f"the handler of {alias} needs argument {name}, but the manifest {state}",
                    argument=name,
                )

        def register(function: HandlerT) -> HandlerT:
            self.registrations[alias] = Registration(definition, function)
            return function

        return register

    def on_start(self, hook: Hook) -> Hook:
        """Run `hook` once before the first request is taken."""
        self.start_hooks.append(hook)
        return hook

    def on_stop(self, hook: Hook) -> Hook:
        """Run `hook` when the host closes the pipe; it has a second."""
        self.stop_hooks.append(hook)
        return hook

    def check_complete(self) -> None:
        """Each cap of the manifest has its handler, identity and discard the standard ones. HANDLER_FAILED names those
        that have none."""
        for cap in self.manifest.caps:
            standard = STANDARD_HANDLERS.get(cap.alias)
            if standard is not None and cap.alias not in self.registrations:
                self.registrations[cap.alias] = Registration(cap, standard)
        missing = [cap.alias for cap in self.manifest.caps if cap.alias not in self.registrations]
        if missing:
            raise failure(Code.HANDLER_FAILED, f"{self.package} has no handler for {', '.join(missing)}.")
