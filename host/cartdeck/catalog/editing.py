"""Owns edits of a catalog's file: they keep its comments, and are whole or not there.

It does not know what the models mean.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import tomlkit
from filelock import FileLock, Timeout
from tomlkit.items import AoT, InlineTable, Table

from cartdeck.catalog.catalog import Catalog, parse_catalog
from cartdeck.catalog.catalog_file import load_catalog, read_text
from cartdeck.catalog.origin import SOURCE_KEYS
from cartdeck_protocol.errors import CartdeckError, Code, failure

_LOCK_S: Final = 10.0
_Values = dict[str, Any]
Document = _Values
"""tomlkit's, which is a dictionary that keeps comments."""


def add_model(path: Path, name: str, table: dict[str, Any], *, replace: bool = False) -> Catalog:
    """Write a model's table under its name, behind the others; the catalog with it.

    Raises BAD_ARGUMENT when the catalog would not be sound with it (nothing is written then), when there is a model of
    the name already and `replace` is false, and as `load_catalog`.
    """

    def add(document: Document) -> None:
        if name in document.get("models", {}) and not replace:
            message = f"{path}: there is a model {name} already; --replace writes over it"
            raise failure(Code.BAD_ARGUMENT, message, argument="name")
        put_model(document, name, table)

    return edit(path, add)


def put_model(document: Document, name: str, table: dict[str, Any]) -> None:
    """Put a model's table into a document, in the place of one of that name."""
    models: Any = document.get("models")
    if models is None:
        models = document["models"] = tomlkit.table(is_super_table=True)
    models[name] = _as_table(table)


def put_keys(document: Document, name: str, values: dict[str, Any]) -> None:
    """Give keys of a model that is there other values; None takes one out. The rest of the model stays as it is."""
    models: Any = document["models"]
    for key, value in values.items():
        if value is None:
            models[name].pop(key, None)
        else:
            models[name][key] = _as_table(cast("_Values", value)) if isinstance(value, dict) else value


def remove_model(path: Path, name: str) -> Catalog:
    """Take a model out; the catalog without it. Raises MODEL_NOT_FOUND, and BAD_ARGUMENT where others name it as their
    fallback (nothing is written then)."""

    def remove(document: Document) -> None:
        catalog = load_catalog(path)
        named = catalog.find(name)
        if named.adapter is not None or named.name != name:
            owner = next(key for key, entry in catalog.entries.items() if entry is named.entry)
            message = f"{name} is an alias or an adapter of {owner}; remove that, or edit {path}"
            raise failure(Code.BAD_ARGUMENT, message, argument="name")
        models: Any = document["models"]
        del models[name]

    return edit(path, remove)


def pin_origin(path: Path, keys: Sequence[str], origin: dict[str, Any], *, source: str | None = None) -> Catalog:
    """Write down what a source gave with the first download, at these keys, such as models, NAME, origin. One that is
    there already stays; so does a table that has another `source` by now."""
    *tables, key = keys

    def pin(document: Document) -> None:
        table: Any = document
        for one in tables:
            table = table.get(one, {})
        if table and key not in table and source in (None, table.get(SOURCE_KEYS[key])):
            is_inline = isinstance(table, InlineTable)
            table[key] = _as_inline(origin) if is_inline else _as_table(origin)

    return edit(path, pin)


def edit(path: Path, change: Callable[[Document], None], *, is_dry: bool = False) -> Catalog:
    """One edit at a time, of all processes; what would not be sound is not written. The catalog as it is then, or, with
    `is_dry`, as it would be: nothing is written.

    Raises BAD_ARGUMENT for a catalog that is not sound before or after, or cannot be written; and what `change` raises.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=_LOCK_S):
            text = read_text(path) or ""
            parse_catalog(text, origin=str(path))
            document = cast("Document", tomlkit.parse(text))
            change(document)
            after = tomlkit.dumps(cast("tomlkit.TOMLDocument", document))
            catalog = _parse_edited(after, path)
            if after != text and not is_dry:
                _replace(path, after)
            return catalog
    except Timeout:
        message = f"another process has been editing {path} for {_LOCK_S:g} s; try again"
        raise failure(Code.BAD_ARGUMENT, message) from None
    except OSError as error:
        raise failure(Code.BAD_ARGUMENT, f"{path} cannot be written: {error.strerror or error}") from None


def _parse_edited(text: str, path: Path) -> Catalog:
    """As `parse_catalog`; the error has all that is wrong, since no file will have it that could be checked."""
    try:
        return parse_catalog(text, origin=str(path))
    except CartdeckError as error:
        found: list[dict[str, str]] = error.details.get("problems", [])
        if len(found) <= 1:
            raise
        message = f"{path}: " + "; ".join(f"{one['path']}: {one['message']}" for one in found)
        raise failure(Code.BAD_ARGUMENT, message, argument=error.argument, details=error.details) from None


def _replace(path: Path, text: str) -> None:
    """The file is the old or the new one at any moment, with the rights it had; a link stays a link."""
    path = path.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(path.stat().st_mode & 0o7777 if path.exists() else 0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _as_table(values: dict[str, Any]) -> Table:
    """A table of TOML: plain values first, then its tables, an array of tables where a list holds them."""
    table = tomlkit.table()
    nested = {key: value for key, value in values.items() if _is_nested(value)}
    for key, value in values.items():
        if key not in nested:
            table.add(key, value)
    for key, value in nested.items():
        if isinstance(value, dict):
            table.add(key, _as_table(cast("_Values", value)))
        else:
            table.add(key, _as_tables(value))
    return table


def _as_inline(values: _Values) -> InlineTable:
    """The same in one line, for a table that stands within one."""
    table = tomlkit.inline_table()
    for key, value in values.items():
        table.add(key, _as_inline(cast("_Values", value)) if isinstance(value, dict) else value)
    return table


def _as_tables(values: list[_Values]) -> AoT:
    return AoT([_as_table(one) for one in values])


def _is_nested(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value  # pyright: ignore[reportUnknownVariableType] - any
    return isinstance(first, dict)
