"""Owns the strict reading of plain records (from JSON or TOML): each key is asked for by type, none is left over.

It does not know what a record means. Every fault is `MANIFEST_DRIFT`, with the place in the file.
"""

from typing import Any, NoReturn, cast

from cartdeck_protocol.errors import Code, failure


class Fields:
    """One record being read. Ask for each key, then call `finish`.

    `place` says where the record stands, as in `manifest.json: caps[0]`.
    """

    def __init__(self, plain: object, place: str) -> None:
        self.place = place
        if not isinstance(plain, dict):
            self.refuse(f"found {_type_name(plain)}, expected a record")
        self._plain = cast("dict[str, Any]", plain)
        self._asked: set[str] = set()

    def refuse(self, message: str) -> NoReturn:
        raise failure(Code.MANIFEST_DRIFT, f"{self.place}: {message}")

    def anything(self, key: str) -> Any | None:
        """The value as it stands; None where it is missing (neither TOML nor our JSON has a null)."""
        self._asked.add(key)
        return self._plain.get(key)

    def text(self, key: str, default: str | None = None) -> str:
        """A text; required unless there is a default."""
        value = self._of_type(key, str, "a text")
        if value is not None:
            return value
        if default is None:
            self.refuse(f"the key {key!r} is missing")
        return default

    def flag(self, key: str) -> bool:
        """True or false; false where it is missing."""
        return self._of_type(key, bool, "true or false") or False

    def integer(self, key: str, default: int) -> int:
        value = self._of_type(key, int, "an integer")
        return default if value is None else value

    def number(self, key: str) -> int | float | None:
        """A finite number, or None where it is missing."""
        value = self.anything(key)
        if value is None or type(value) is int:
            return value
        if type(value) is not float or value - value != 0:
            self.refuse(f"{key}: found {_type_name(value)}, expected a finite number")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty where it is missing."""
        values = self.items(key)
        if not all(type(value) is str for value in values):
            self.refuse(f"{key}: expected a list of texts")
        return tuple(cast("list[str]", values))

    def items(self, key: str) -> list[Any]:
        """A list of anything; empty where it is missing."""
        value: list[Any] | None = self._of_type(key, list, "a list")
        return value or []

    def records(self, key: str) -> "list[Fields]":
        """A list of records; empty where it is missing. A record's place has its name, else its index."""
        return [
            Fields(value, f"{self.place}: {key}[{_label(value, index)}]") for index, value in enumerate(self.items(key))
        ]

    def tables(self, key: str) -> dict[str, dict[str, Any]]:
        """A record of records of anything; empty where it is missing."""
        value: dict[str, Any] = self._of_type(key, dict, "a record") or {}
        for name, inner in value.items():
            if not isinstance(inner, dict):
                self.refuse(f"{key}.{name}: found {_type_name(inner)}, expected a record")
        return value

    def finish(self) -> None:
        """Refuse keys that nobody asked for."""
        unknown = sorted(str(key) for key in self._plain if key not in self._asked)
        if unknown:
            known = ", ".join(sorted(self._asked))
            self.refuse(f"unknown key {', '.join(map(repr, unknown))}; the keys are {known}")

    def _of_type(self, key: str, wanted: type[Any], name: str) -> Any | None:
        value = self.anything(key)
        if value is not None and type(value) is not wanted:
            self.refuse(f"{key}: found {_type_name(value)}, expected {name}")
        return value


def _label(plain: object, index: int) -> str:
    record = cast("dict[str, Any]", plain) if isinstance(plain, dict) else {}
    label = record.get("alias") or record.get("name")
    return label if isinstance(label, str) else str(index)


def _type_name(value: object) -> str:
    names: dict[type[Any], str] = {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "a text",
        list: "a list",
    }
    return names.get(type(value), "a record" if isinstance(value, dict) else type(value).__name__)
