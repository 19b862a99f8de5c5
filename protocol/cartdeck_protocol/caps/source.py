"""Owns the TOML that authors write: definition files and manifest.toml, and the shared definitions shipped here.

It does not know what is done with them; a running host or cartridge reads manifest.json alone and never comes here.
"""

import tomllib
from collections.abc import Callable
from importlib.resources import files
from typing import Any, cast

from cartdeck_protocol.caps.argument import ValueKind
from cartdeck_protocol.caps.definition import UNIVERSAL_CAPS, CapDefinition, read_definition
from cartdeck_protocol.caps.manifest import Manifest, read_manifest
from cartdeck_protocol.caps.record import Fields
from cartdeck_protocol.caps.sample import plain_bytes
from cartdeck_protocol.caps.tag import UrnError
from cartdeck_protocol.errors import Code, failure


def parse_definition(toml_text: str, alias: str) -> CapDefinition:
    """The definition in the text of ALIAS.toml. Raises MANIFEST_DRIFT, which says what is wrong where."""
    place = f"{alias}.toml"
    plain = _parse_toml(toml_text, place)
    outputs = _named_records(plain, "outputs", place)
    if "output" in plain:
        outputs.insert(0, plain.pop("output"))
    plain["arguments"] = _named_records(plain, "arguments", place)
    plain["outputs"] = outputs
    if "alias" in plain:
        raise failure(Code.MANIFEST_DRIFT, f"{place}: unknown key 'alias'; the file's name is the alias")
    return read_definition(Fields({**plain, "alias": alias}, place))


def shared_aliases() -> tuple[str, ...]:
    """The aliases of the shared definitions, sorted."""
    names = (entry.name for entry in files("cartdeck_protocol.caps").joinpath("definitions").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load_shared_definition(alias: str) -> CapDefinition:
    """The shared definition of that alias. Raises NO_SUCH_CAP, which lists what there is."""
    if alias not in shared_aliases():
        known = ", ".join(shared_aliases())
        raise failure(Code.NO_SUCH_CAP, f"there is no shared definition {alias!r}; there are {known}")
    resource = files("cartdeck_protocol.caps").joinpath("definitions", f"{alias}.toml")
    return parse_definition(resource.read_text("utf-8"), alias)


def build_manifest(
    toml_text: str,
    read_own_definition: Callable[[str], str | None] | None = None,
    read_file: Callable[[str], bytes] | None = None,
) -> Manifest:
    """The manifest of a manifest.toml.

    `read_own_definition(alias)` gives the text of a definition file that the cartridge ships, or None; then the
    shared definition is taken. `read_file(name)` gives what `@name` stands for in a sample. The tags are added to the
    URN of each cap that the file names. Raises MANIFEST_DRIFT, and NO_SUCH_CAP for a cap that is defined nowhere.
    """
    plain = _parse_toml(toml_text, "manifest.toml")
    fields = Fields(plain, "manifest.toml")
    tags = fields.texts("tags")
    caps: list[CapDefinition] = []
    for alias in fields.texts("caps"):
        text = read_own_definition(alias) if read_own_definition is not None else None
        definition = load_shared_definition(alias) if text is None else parse_definition(text, alias)
        caps.append(definition if alias in UNIVERSAL_CAPS else _tagged(fields, definition, tags))
    named = {definition.alias for definition in caps}
    caps.extend(load_shared_definition(alias) for alias in UNIVERSAL_CAPS if alias not in named)
    if read_file is not None:
        _read_sample_files(plain.get("samples"), caps, read_file)
    return read_manifest(fields, tuple(caps))


def _read_sample_files(samples: Any, caps: list[CapDefinition], read_file: Callable[[str], bytes]) -> None:
    """Put what files hold in the place of `@NAME`, for arguments of bytes. What is wrong in them is found later."""
    if not isinstance(samples, dict):
        return
    for alias, sample in cast("dict[str, Any]", samples).items():
        arguments = [one for cap in caps if cap.alias == alias for one in cap.arguments.values()]
        for argument in arguments:
            if argument.kind is not ValueKind.BYTES or not isinstance(sample, dict) or argument.name not in sample:
                continue
            place = cast("dict[str, Any]", sample)
            place[argument.name] = _with_files(place[argument.name], read_file)


def _with_files(value: Any, read_file: Callable[[str], bytes]) -> Any:
    if isinstance(value, list):
        return [_with_files(one, read_file) for one in cast("list[Any]", value)]
    if not isinstance(value, str) or not value.startswith("@"):
        return value
    return value[1:] if value.startswith("@@") else plain_bytes(read_file(value[1:]))


def _tagged(fields: Fields, definition: CapDefinition, tags: tuple[str, ...]) -> CapDefinition:
    try:
        return definition.with_tags(*tags)
    except UrnError as error:
        fields.refuse(f"tags: {error}")


def _parse_toml(text: str, place: str) -> dict[str, Any]:
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise failure(Code.MANIFEST_DRIFT, f"{place}: this is no TOML: {error}") from None
    samples = plain.pop("samples", None)  # what stands there are values, not prose
    _unwrap(plain)
    return plain if samples is None else {**plain, "samples": samples}


def _unwrap(plain: dict[str, Any]) -> None:
    """Join the lines of each paragraph of prose, here and in the tables below: who prints it wraps it."""
    for key, value in plain.items():
        if key in ("documentation", "description") and isinstance(value, str):
            plain[key] = "\n\n".join(" ".join(part.split()) for part in value.strip().split("\n\n"))
        elif isinstance(value, dict):
            _unwrap(cast("dict[str, Any]", value))


def _named_records(plain: dict[str, Any], key: str, place: str) -> list[Any]:
    """The tables `[key.NAME]` as a list of records that carry their name, in the order written."""
    tables = plain.pop(key, {})
    if not isinstance(tables, dict):
        raise failure(Code.MANIFEST_DRIFT, f"{place}: {key}: expected tables [{key}.NAME]")
    records: list[Any] = []
    for name, record in cast("dict[str, Any]", tables).items():
        if not isinstance(record, dict) or "name" in record:
            raise failure(Code.MANIFEST_DRIFT, f"{place}: {key}.{name}: expected a table without the key 'name'")
        records.append({"name": name, **cast("dict[str, Any]", record)})
    return records
