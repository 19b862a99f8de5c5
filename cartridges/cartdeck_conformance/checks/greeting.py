"""Owns the checks of a start: HELLO, how long it takes, and the manifest that came with it."""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from cartdeck_conformance import catalogue
from cartdeck_conformance.bench import Bench, check_identity
from cartdeck_conformance.conversation import SOFTWARE, Conversation
from cartdeck_conformance.verdict import Fault
from cartdeck_protocol.caps import UNIVERSAL_CAPS, CapDefinition, Manifest, load_shared_definition
from cartdeck_protocol.errors import CartdeckError
from cartdeck_protocol.wire import API_VERSION, Limits
from cartdeck_protocol.wire.frames import encode
from cartdeck_protocol.wire.messages import FEATURES

_SPOKEN_FIRST: Final = 2
"""So many times what the first start took: a process needs a while until it can speak at all."""
_STARTS: Final = 3
_OTHER_VERSION: Final = 99


def handshake(bench: Bench) -> None:
    """HELLO of both ends, the manifest read, and HELLO again with a version that nobody speaks."""
    with Conversation(bench.setup) as talk:
        hello = talk.greet()
        bench.figures["hello_s"] = time.monotonic() - talk.process.started_s
        bench.figures["hello_s"] = time.monotonic() - talk.process.started_s
        if not hello.features >= FEATURES:
            missing = ", ".join(sorted(FEATURES - hello.features))
            bench.findings.tell(catalogue.HANDSHAKE, f"HELLO does not name the features {missing}")
        try:
            bench.take_manifest(hello.manifest)
        except CartdeckError as error:
            raise Fault(error.message, catalogue.MANIFEST) from None
    _with_another_version(bench)


def _with_another_version(bench: Bench) -> None:
    meta = {"protocol": _OTHER_VERSION, "api": API_VERSION, "limits": Limits().to_wire(), "features": sorted(FEATURES)}
    with Conversation(bench.setup) as talk:
        talk.wait(lambda: talk.received_bytes > 0, bench.figures["hello_s"] * _SPOKEN_FIRST + bench.durations.quiet_s)
        if talk.received_bytes and not talk.is_damaged:
            raise Fault("it spoke before the host's HELLO came")
        talk.send_raw(encode({1: 0, 2: 0, 5: {**meta, "software": SOFTWARE}}))
        is_answered = talk.wait(lambda: talk.hello is not None, bench.durations.hello_s)
        if not is_answered:
            raise Fault(f"a HELLO with protocol {_OTHER_VERSION} was not answered with a HELLO")


def start_time(bench: Bench) -> None:
    """From the start of the process to the answer of identity: the best of a few."""
    best_s = float("inf")
    for _ in range(1 if bench.is_fast else _STARTS):
        with Conversation(bench.setup) as talk:
            talk.greet()
            check_identity(talk)
            best_s = min(best_s, time.monotonic() - talk.process.started_s)
    bench.figures["ready_s"] = best_s
    if best_s > bench.durations.start_s:
        raise Fault(f"it was ready {best_s:.1f} s after its start; at most {bench.durations.start_s:g} s are well")


def manifest(bench: Bench) -> None:
    """Lint, and the comparison with the manifest on disk."""
    found = bench.manifest
    assert found is not None  # the handshake has read it
    tell, check = bench.findings.tell, catalogue.MANIFEST
    for alias in UNIVERSAL_CAPS:
        ours = load_shared_definition(alias)
        theirs = next((cap for cap in found.caps if cap.alias == alias), None)
        if theirs is None:
            tell(check, f"it does not name the cap {alias} ({ours.urn}), which every cartridge serves")
        elif theirs.urn != ours.urn or list(theirs.arguments) != list(ours.arguments):
            tell(
                check, f"its cap {alias} is {theirs.urn} of {', '.join(theirs.arguments)}, expected {ours.urn} of data"
            )
    for message in _spelling(json.loads(bench.manifest_bytes)):
        tell(check, message)
    for cap in found.caps:
        for message in _wording(cap):
            tell(check, message)
    _compare(bench, found)


def _spelling(plain: dict[str, Any]) -> Iterator[str]:
    """URNs that are not in their canonical text: hosts and people compare them as text."""
    found = Manifest.from_json(json.dumps(plain))
    for cap, record in zip(found.caps, cast("list[dict[str, Any]]", plain["caps"]), strict=True):
        pairs = [(record["urn"], str(cap.urn))]
        for key, definitions in (("arguments", cap.arguments), ("outputs", cap.outputs)):
            records = cast("list[dict[str, Any]]", record.get(key, []))
            pairs += [(one["media"], str(definitions[one.get("name", "")].media)) for one in records if "media" in one]
        for written, canonical in pairs:
            if written != canonical:
                yield f"{cap.alias}: the URN {written} is not in its canonical text, {canonical}"


def _wording(cap: CapDefinition) -> Iterator[str]:
    if not cap.title.strip() or not cap.documentation.strip():
        yield f"{cap.alias} has no title or no documentation"
    for one in (*cap.arguments.values(), *cap.outputs.values()):
        if not one.documentation.strip():
            yield f"{cap.alias}: {one.name or 'the main output'} has no documentation"


def _compare(bench: Bench, wire: Manifest) -> None:
    data, place = (bench.file, "the manifest on disk") if bench.file is not None else _on_disk(bench)
    if data is None:
        bench.findings.note(catalogue.MANIFEST, f"drift was not exercised: {place}")
        return
    try:
        file = Manifest.from_json(data, place=place)
    except CartdeckError as error:
        bench.findings.tell(catalogue.MANIFEST, error.message)
        return
    if file == wire:
        return
    differing = [name for name in ("name", "version") if getattr(file, name) != getattr(wire, name)]
    theirs, ours = ({cap.alias: cap for cap in one.caps} for one in (wire, file))
    differing += [alias for alias in sorted(theirs.keys() | ours.keys()) if theirs.get(alias) != ours.get(alias)]
    what = ", ".join(differing) or "properties, requirements or samples"
    bench.findings.tell(catalogue.MANIFEST, f"{place} and the one in HELLO differ in: {what}")


def _on_disk(bench: Bench) -> tuple[bytes | None, str]:
    """The manifest that the command's cartridge has on disk, and where it was found; or why there is none."""
    command = bench.setup.command
    if command[-2:-1] == ("cartdeck_sdk",):
        package = command[-1]
        if command[0] == sys.executable and (path := _beside(package)) is not None:
            return path.read_bytes(), str(path)
        asked = (command[0], "-P", "-m", package, "manifest")
    else:
        asked = (*command, "manifest")
    spoken = " ".join(asked)
    try:
        done = subprocess.run(
            asked,
            cwd=bench.setup.folder,
            env=bench.setup.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=bench.durations.hello_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"`{spoken}` failed: {error}"
    if done.returncode or not done.stdout.lstrip().startswith(b"{"):
        return None, f"`{spoken}` printed no manifest"
    return done.stdout, f"what `{spoken}` prints"


def _beside(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    folders = None if spec is None else spec.submodule_search_locations
    path = Path(next(iter(folders))) / "manifest.json" if folders else None
    return path if path is not None and path.is_file() else None
