"""Owns what is different between two states of a catalog.

It does not know why, nor what a server makes of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from cartdeck.catalog.catalog import Catalog, Named
from cartdeck.catalog.choosing import Machine, fingerprint, ranked
from cartdeck.catalog.entry import Table


class What(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one model or guard. `keys` are those of a changed one that differ."""

    what: What
    name: str
    keys: tuple[str, ...] = ()
    is_other_instance: bool = False
    """One that is loaded now was loaded by another definition."""
    is_guard: bool = False

    def __str__(self) -> str:
        text = f"guard {self.name} {self.what}" if self.is_guard else f"{self.name} {self.what}"
        if self.keys:
            text += f" ({', '.join(self.keys)})"
        return text + (": what is loaded of it is of the definition before" if self.is_other_instance else "")


def changes(old: Catalog, new: Catalog, machine: Machine) -> list[Change]:
    """What changed, in the order of the new file; what went comes last."""
    before = {one.name: one for one in old.models()}
    after = {one.name: one for one in new.models()}
    gone = [Change(What.REMOVED, name) for name in before if name not in after]
    return [*_new_and_changed(before, after, machine), *gone, *_guards(old, new)]


def _guards(old: Catalog, new: Catalog) -> Iterator[Change]:
    for name, guard in new.guards.items():
        if (was := old.guards.get(name)) is None:
            yield Change(What.ADDED, name, is_guard=True)
        elif guard != was:
            is_other = guard.own_entry() != was.own_entry() or guard.model != was.model
            yield Change(What.CHANGED, name, _differing(was, guard), is_other_instance=is_other, is_guard=True)
    yield from (Change(What.REMOVED, name, is_guard=True) for name in old.guards if name not in new.guards)


def _new_and_changed(before: dict[str, Named], after: dict[str, Named], machine: Machine) -> Iterator[Change]:
    for name, one in after.items():
        if (was := before.get(name)) is None:
            yield Change(What.ADDED, name)
        elif one != was:
            is_other = _fingerprint(was, machine) != _fingerprint(one, machine)
            yield Change(What.CHANGED, name, _keys(was, one), is_other_instance=is_other)


def _fingerprint(named: Named, machine: Machine) -> str:
    return fingerprint(named, next(iter(ranked(named.entry, machine)), None))


def _keys(was: Named, one: Named) -> tuple[str, ...]:
    if was.adapter != one.adapter:
        return ("lora",)
    return _differing(was.entry, one.entry)


def _differing(was: Table, one: Table) -> tuple[str, ...]:
    """The keys, as the file has them."""
    fields = type(one).model_fields
    return tuple(key.alias or name for name, key in fields.items() if getattr(was, name) != getattr(one, name))
