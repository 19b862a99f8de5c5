"""Owns what a job writes: an entry into the catalog, other weights into an entry, and the history beside it, at once.

It does not know how the weights came here.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cartdeck.adding.history import History, ModelHistory
from cartdeck.adding.repository import repository_of
from cartdeck.catalog.catalog import Catalog, Named, parse_catalog
from cartdeck.catalog.catalog_file import read_text
from cartdeck.catalog.editing import Document, edit, put_keys, put_model
from cartdeck_protocol.errors import Code, failure

_OF_WEIGHTS: Final = ("source", "origin", "projector", "projector_origin")
"""The keys that an update gives other values; the rest of an entry is its owner's."""


def read_catalog(path: Path) -> Catalog:
    """The catalog; an empty one where there is no file. Raises BAD_ARGUMENT for one that is not sound."""
    text = read_text(path)
    return Catalog() if text is None else parse_catalog(text, origin=str(path))


def check_name(path: Path, name: str) -> None:
    """Raises BAD_ARGUMENT where the catalog, or what it has, stands against a model of that name."""
    catalog = read_catalog(path)
    taken = next((one for one in catalog.models() if name in (one.name, *one.entry.aliases)), None)
    if taken is not None:
        raise _is_taken(path, taken, name)


def model_of(path: Path, name: str) -> Named:
    """The model of that name or alias. Raises MODEL_NOT_FOUND; BAD_ARGUMENT for an adapter."""
    named = read_catalog(path).find(name)
    if named.adapter is not None:
        raise failure(Code.BAD_ARGUMENT, f"{name} is an adapter; name the model that it is on", argument="name")
    return named


def place(path: Path, name: str, table: dict[str, Any], *, follows: str | None = None, is_dry: bool = False) -> Catalog:
    """Write a model that was not there; the catalog with it. With `is_dry` nothing is written.

    Raises BAD_ARGUMENT where it is there by now, or the catalog would not be sound with it.
    """

    def change(document: Document) -> None:
        if name in document.get("models", {}):
            raise _is_taken(path, read_catalog(path).find(name), name)
        put_model(document, name, table)
        if not is_dry:
            History(path).keep(name, ModelHistory(follows))

    return edit(path, change, is_dry=is_dry)


def move(path: Path, named: Named, values: Mapping[str, Any], *, follows: str | None, is_dry: bool = False) -> Catalog:
    """Give a model other weights, and keep what it had before; the catalog then. With `is_dry` nothing is written.

    Raises BAD_ARGUMENT where somebody else gave it others meanwhile.
    """

    def change(document: Document) -> None:
        before = _weights_in(document, path, named)
        if not is_dry:
            histories = History(path)
            history = histories.of(named.name)
            if before not in history.earlier[-1:]:
                history.earlier.append(before)
            history.follows = follows
            histories.keep(named.name, history)
        put_keys(document, named.name, {key: values.get(key) for key in _OF_WEIGHTS})

    return edit(path, change, is_dry=is_dry)


def earlier_of(path: Path, named: Named) -> dict[str, Any]:
    """The weights that a model had before its last update. Raises BAD_ARGUMENT where it had none."""
    earlier = [one for one in History(path).of(named.name).earlier if one["source"] != named.entry.source]
    if not earlier:
        message = f"{named.name} has no update left to undo: there is nothing to go back to"
        raise failure(Code.BAD_ARGUMENT, message, argument="name")
    return earlier[-1]


def move_back(path: Path, named: Named, earlier: Mapping[str, Any]) -> Catalog:
    """Give a model the weights that it had, and forget what came behind them; the catalog then. Raises as `move`."""

    def change(document: Document) -> None:
        _weights_in(document, path, named)
        histories = History(path)
        history = histories.of(named.name)
        if earlier in history.earlier:
            del history.earlier[history.earlier.index(dict(earlier)) :]
        put_keys(document, named.name, {key: earlier.get(key) for key in _OF_WEIGHTS})
        histories.keep(named.name, history)

    return edit(path, change)


def _weights_in(document: Document, path: Path, named: Named) -> dict[str, Any]:
    """What the file has of the model's weights now. Raises BAD_ARGUMENT where that is not what was looked at."""
    model: Any = document.get("models", {}).get(named.name)
    if model is None or model.get("source") != named.entry.source:
        message = f"{path}: {named.name} was changed meanwhile, and stays as it is; try again"
        raise failure(Code.BAD_ARGUMENT, message, argument="name")
    plain: Any = model.unwrap()
    return copy.deepcopy({key: plain[key] for key in _OF_WEIGHTS if key in plain})


def _is_taken(path: Path, taken: Named, name: str) -> Exception:
    is_of_hub = repository_of(taken.entry.source) is not None
    update = f"`cartdeck update {taken.name}` looks for newer weights of it; " if is_of_hub else ""
    message = (
        f"{path}: there is a model {name} already, of {taken.entry.source or 'another server'}; "
        f"{update}--name gives this one another name."
    )
    return failure(Code.BAD_ARGUMENT, message, argument="name")
