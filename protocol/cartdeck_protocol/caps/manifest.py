"""Owns the manifest: what a cartridge is, what it serves and what it needs, as the file that both sides read.

It does not know files or processes. The bytes are canonical, so that two manifests are equal when their bytes are.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from cartdeck_protocol.caps.definition import CapDefinition, read_definition
from cartdeck_protocol.caps.record import Fields
from cartdeck_protocol.caps.sample import Sample, check_sample
from cartdeck_protocol.errors import CartdeckError, Code, failure

FORMAT = 1
"""The version of the file's form. A reader refuses another."""

_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A library that a cartridge needs: the importable `module`, and `install`, the command that brings it."""

    module: str
    install: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a cartridge says of itself.

    `accepts` are globs on model specs that it takes gladly (it breaks ties); `holds_instances` says that a process
    of it keeps a loaded thing, one for each set of instance arguments; `capacity` is how many requests one process
    takes at a time; `network` says that it needs one. `samples` are by the alias of a cap: arguments to try it out
    with.
    """

    name: str
    version: str
    title: str
    description: str
    caps: tuple[CapDefinition, ...]
    requires: tuple[Requirement, ...] = ()
    accepts: tuple[str, ...] = ()
    holds_instances: bool = False
    capacity: int = 1
    network: bool = False
    samples: dict[str, Sample] = field(default_factory=dict[str, Sample])

    def cap(self, alias: str) -> CapDefinition:
        """The definition of that alias. Raises NO_SUCH_CAP, which lists what there is."""
        for definition in self.caps:
            if definition.alias == alias:
                return definition
        known = ", ".join(definition.alias for definition in self.caps)
        raise failure(Code.NO_SUCH_CAP, f"{self.name} has no cap {alias!r}; it serves {known}")

    def to_json(self) -> bytes:
        """The canonical bytes of manifest.json: UTF-8, keys sorted, two spaces, a newline at the end."""
        plain: dict[str, Any] = {
            "format": FORMAT,
            "name": self.name,
            "version": self.version,
            "title": self.title,
            "description": self.description,
            "caps": [definition.to_plain() for definition in self.caps],
            "requires": [{"module": need.module, "install": need.install} for need in self.requires],
            "accepts": list(self.accepts),
            "holds_instances": self.holds_instances,
            "capacity": self.capacity,
        }
        if self.network:
            plain["network"] = True
        if self.samples:
            plain["samples"] = self.samples
        return (json.dumps(plain, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes | str, *, place: str = "manifest.json") -> "Manifest":
        """The manifest in `data`, read strictly. Raises MANIFEST_DRIFT, which says what is wrong where."""
        try:
            plain = json.loads(data, object_pairs_hook=_record_of_pairs, parse_constant=_refuse_constant)
            json.dumps(plain, ensure_ascii=False).encode()  # half of a surrogate pair can be read, and never be shown
        except (ValueError, RecursionError) as error:
            raise failure(Code.MANIFEST_DRIFT, f"{place}: this is no manifest: {error}") from None
        fields = Fields(plain, place)
        found = fields.integer("format", 0)
        if found != FORMAT:
            fields.refuse(f"found format {found}, expected {FORMAT}: it was written for another version")
        caps = tuple(read_definition(record) for record in fields.records("caps"))
        return read_manifest(fields, caps)


def read_manifest(fields: Fields, caps: tuple[CapDefinition, ...]) -> Manifest:
    """The manifest of a record whose caps have been read already, checked. Raises MANIFEST_DRIFT."""
    manifest = Manifest(
        name=fields.text("name"),
        version=fields.text("version"),
        title=fields.text("title"),
        description=fields.text("description"),
        caps=caps,
        requires=tuple(_read_requirement(record) for record in fields.records("requires")),
        accepts=fields.texts("accepts"),
        holds_instances=fields.flag("holds_instances"),
        capacity=fields.integer("capacity", 1),
        network=fields.flag("network"),
        samples=fields.tables("samples"),
    )
    fields.finish()
    _check(fields, manifest)
    _check_samples(fields, manifest)
    return manifest


def _read_requirement(fields: Fields) -> Requirement:
    requirement = Requirement(module=fields.text("module"), install=fields.text("install"))
    fields.finish()
    if not _MODULE.fullmatch(requirement.module):
        fields.refuse(f"module: found {requirement.module!r}, expected a name that Python can import")
    return requirement


def _check(fields: Fields, manifest: Manifest) -> None:
    if not _NAME.fullmatch(manifest.name):
        fields.refuse(f"name: found {manifest.name!r}, expected small letters, digits and single hyphens")
    if manifest.capacity < 1:
        fields.refuse(f"capacity: found {manifest.capacity}, expected at least 1")
    if not manifest.caps:
        fields.refuse("caps: a cartridge serves at least one cap")
    for what, names in (
        ("cap", [definition.alias for definition in manifest.caps]),
        ("cap URN", [str(definition.urn) for definition in manifest.caps]),
    ):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            fields.refuse(f"the {what} {twice[0]!r} is there twice")
    for definition in manifest.caps:
        if definition.instance_arguments and not manifest.holds_instances:
            fields.refuse(f"{definition.alias} has instance arguments, but holds_instances is false")


def _check_samples(fields: Fields, manifest: Manifest) -> None:
    known = {definition.alias: definition for definition in manifest.caps}
    for alias, sample in manifest.samples.items():
        if alias not in known:
            fields.refuse(f"samples: there is no cap {alias!r}; it serves {', '.join(known)}")
        try:
            check_sample(known[alias], sample)
        except CartdeckError as error:
            fields.refuse(f"samples.{alias}: {error}")


def _record_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return record


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"found {name}, expected a finite number")
