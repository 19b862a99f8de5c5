"""Owns what a catalog's file does not say of its models: which branch one follows, and what it was before an update.

It is kept beside the catalog, as JSON, and changed only while the catalog's own lock is held. It does not know the
catalog.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from cartdeck_protocol.errors import Code, failure

MOST_EARLIER: Final = 10


@dataclass(slots=True)
class ModelHistory:
    """Of one model: the branch or tag that updates look at, and the keys that it had before each update, latest
    last."""

    follows: str | None = None
    earlier: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class History:
    """The histories of a catalog's models."""

    def __init__(self, catalog: Path) -> None:
        self.path = catalog.with_name(f"{catalog.stem}.history.json")

    def of(self, name: str) -> ModelHistory:
        """The history of a model; an empty one where nothing was kept. Raises BAD_ARGUMENT for a file of another
        form."""
        kept = self._read().get(name)
        if not isinstance(kept, dict):
            return ModelHistory()
        found = cast("dict[str, Any]", kept)
        listed: list[Any] = found.get("earlier") or []
        earlier = [cast("dict[str, Any]", one) for one in listed if isinstance(one, dict) and "source" in one]
        follows = found.get("follows")
        return ModelHistory(follows if isinstance(follows, str) else None, earlier)

    def keep(self, name: str, history: ModelHistory) -> None:
        """Write a model's history in the place of the one before; the file is whole at any moment."""
        all_of_them = dict(self._read())
        before = all_of_them.pop(name, None)
        if history.follows is not None or history.earlier:
            all_of_them[name] = {"follows": history.follows, "earlier": history.earlier[-MOST_EARLIER:]}
        if all_of_them.get(name) != before:
            self._write(all_of_them)

    def _read(self) -> Mapping[str, Any]:
        try:
            found = json.loads(self.path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            message = (
                f"{self.path} cannot be read: {error}. Mend it, or move it away: the models themselves need it not."
            )
            raise failure(Code.BAD_ARGUMENT, message) from None
        return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}

    def _write(self, histories: Mapping[str, Any]) -> None:
        descriptor, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(histories, file, ensure_ascii=False, indent=1)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
