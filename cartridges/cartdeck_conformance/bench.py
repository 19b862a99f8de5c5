"""Owns what the checks of one cartridge share: its manifest, its samples, breaches found so far, figures, settings.

It does not know the single checks.
"""

import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from cartdeck_conformance import catalogue
from cartdeck_conformance.call import Call
from cartdeck_conformance.catalogue import Check
from cartdeck_conformance.conversation import Conversation, Setup
from cartdeck_conformance.sample_call import SampledCap
from cartdeck_conformance.verdict import Fault, NotExercised
from cartdeck_protocol.caps import (
    UNIVERSAL_CAPS,
    ArgumentDefinition,
    CapDefinition,
    CapUrn,
    Manifest,
    Sample,
    ValueKind,
)
from cartdeck_protocol.caps.item_text import item_of_text, items_of_text
from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire import Limits

IDENTITY_CAP: Final = "cap:effect=none"
DISCARD_CAP: Final = str(CapUrn.parse("cap:discard;in=media:;out=media:void"))
SMALL: Final = Limits(max_chunk=1024, initial_credit=2)
"""What the kit accepts where credit is checked: little."""
MOST_FAULTS: Final = 12
QUICK_S: Final = 1.0


@dataclass(slots=True)
class Findings:
    """Breaches by the number of the check that they belong to, each said once."""

    faults: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    notes: dict[int, list[str]] = field(default_factory=dict[int, list[str]])

    def tell(self, check: Check, message: str) -> None:
        told = self.faults.setdefault(check.number, [])
        if message not in told and len(told) < MOST_FAULTS:
            told.append(message)

    def note(self, check: Check, message: str) -> None:
        told = self.notes.setdefault(check.number, [])
        if message not in told:
            told.append(message)


class Bench:
    """What a check is given."""

    def __init__(
        self, setup: Setup, findings: Findings, *, is_fast: bool, file: bytes | None, samples: Mapping[str, Sample]
    ) -> None:
        """`file` is the manifest on disk, where somebody has read it already; `samples` win over the manifest's."""
        self.setup = setup
        self.durations = setup.durations
        self.findings = findings
        self.is_fast = is_fast
        self.file = file
        self.figures: dict[str, float] = {}
        self.manifest_bytes = b""
        self.manifest: Manifest | None = None
        self.sampled: list[SampledCap] = []
        self._given_samples = samples

    @contextmanager
    def conversation(
        self, limits: Limits | None = None, *, next_write: Callable[[], int] | None = None
    ) -> Generator[Conversation]:
        """A process that has said its HELLO. At the end, a moment for what must not come."""
        with Conversation(self.setup, limits=limits) as talk:
            talk.next_write = next_write
            talk.greet()
            yield talk
            talk.listen(self.durations.quiet_s)

    @property
    def own_caps(self) -> list[CapDefinition]:
        """All but identity and discard."""
        return [] if self.manifest is None else [cap for cap in self.manifest.caps if cap.alias not in UNIVERSAL_CAPS]

    @property
    def capacity(self) -> int:
        """1 also where requests that are open at once harm one another: that is said once, by its own check."""
        if self.manifest is None or catalogue.CONCURRENT.number in self.findings.faults:
            return 1
        return self.manifest.capacity

    def take_manifest(self, data: bytes) -> None:
        """Read the manifest that came in HELLO, and what can be called. Raises MANIFEST_DRIFT."""
        self.manifest_bytes = data
        self.manifest = Manifest.from_json(data, place="the manifest in HELLO")
        caps = {cap.alias: cap for cap in self.own_caps}
        for alias in self._given_samples.keys() - caps.keys():
            self._tell_of_sample(alias, f"it has no such cap; it has {', '.join(caps)}")
        for alias, cap in caps.items():
            given = self._given_samples.get(alias)
            try:
                sample = self.manifest.samples.get(alias) if given is None else _with_lists(cap, given)
                if sample is not None:
                    self.sampled.append(SampledCap(cap, sample))
            except CartdeckError as error:  # those of the manifest were looked at when it was read
                self._tell_of_sample(alias, error.message)

    def _tell_of_sample(self, alias: str, message: str) -> None:
        self.findings.tell(catalogue.SAMPLES, f"the sample that was given for {alias}: {message}")

    @property
    def working(self) -> list[SampledCap]:
        """The caps whose sample was answered well."""
        return [one for one in self.sampled if one.works]

    @property
    def quick(self) -> list[SampledCap]:
        """Those that take little time, the quickest first."""
        found = [one for one in self.working if (one.took_s or 0.0) < QUICK_S]
        return sorted(found, key=lambda one: one.took_s or 0.0)

    def need_working(self) -> list[SampledCap]:
        """Raises NotExercised where no cap has a sample that works."""
        if not self.working:
            raise NotExercised("no cap has a sample that was answered")
        return self.working


def _with_lists(cap: CapDefinition, sample: Sample) -> Sample:
    """A command line spells the items of a sequence as texts, and a sequence of one item as that item."""
    return {name: _items(cap.argument(name), value) for name, value in sample.items()}


def _items(argument: ArgumentDefinition, value: Any) -> Any:
    if not argument.is_sequence:
        return value
    # a text is an item as it is where bytes are wanted (it may be a data URL), or any JSON
    is_read = argument.kind is not ValueKind.BYTES and (
        argument.kind is not ValueKind.JSON or argument.is_record or argument.is_list
    )
    if isinstance(value, str) and is_read:
        return items_of_text(argument, value)
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [item_of_text(argument, item) if isinstance(item, str) and is_read else item for item in items]


def open_identity(talk: Conversation, *, takes: bool = True) -> Call:
    """An identity request whose argument is still to come, as a stream."""
    return talk.open(IDENTITY_CAP, takes=takes)


def check_identity(talk: Conversation, data: bytes | None = None, what: str = "identity") -> None:
    """Raises Fault unless identity, with its argument inside the request, gives the bytes back."""
    data = secrets.token_bytes(64) if data is None else data
    call = talk.call(IDENTITY_CAP, {"data": data})
    talk.finish(call)
    check_same(call, data, what)


def check_same(call: Call, data: bytes, what: str) -> None:
    """Raises Fault unless the call ended well and its main output is `data`."""
    check_whole(call, what)
    if not call.is_finished:
        raise Fault(f"{what} ended with {call.ending}")
    if call.main != data:
        raise Fault(f"{what} gave back {_shown(call.main)}, expected {_shown(data)}")


def check_whole(call: Call, what: str) -> None:
    """Raises NotExercised where the call broke a law that another check speaks of."""
    if call.is_damaged:
        raise NotExercised(f"{what} broke off: another check says why")


def error_of(call: Call) -> CartdeckError:
    """The ERR that the call ended with. Raises Fault where there was none."""
    check_whole(call, call.cap)
    if call.error is None:
        raise Fault(f"{call.cap} ended with {call.ending}; expected an ERR")
    return call.error


def _shown(data: bytes) -> str:
    return f"{len(data)} bytes ({data[:16].hex()}…)" if len(data) > 16 else f"{len(data)} bytes ({data.hex()})"
