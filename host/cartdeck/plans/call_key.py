"""Owns the key of a call among kept results: its cap's definition, its cartridge, its arguments, its models' files.

It does not know what is kept under the key.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cartdeck.plans.convert import Absent
from cartdeck.plans.kept import Kept, pack
from cartdeck.plans.model_hash import ModelHashes, model_specs
from cartdeck.plans.spool import Reader
from cartdeck.plans.step_call import Listener
from cartdeck.router import Route
from cartdeck.switch import Switch
from cartdeck_protocol.caps import CapDefinition, encode_value

_FORM: Final = 2
"""The version of keys: what another one kept is not found."""


class CallKeys:
    """Makes the keys of one run."""

    def __init__(self, kept: Kept, engine: Switch) -> None:
        self._kept = kept
        self._models = ModelHashes(engine, kept.file_hash)
        self._definitions: dict[int, str] = {}

    async def model_lines(
        self, definition: CapDefinition, arguments: Mapping[str, Any], listener: Listener, timeout_s: float | None
    ) -> list[str]:
        """What the key says of the models that such a call is made with. Raises what obtaining them raises."""
        specs = model_specs(definition, arguments)
        return [f"model {await self._models.of(one, listener, timeout_s=timeout_s)}" for one in specs]

    async def key(
        self,
        route: Route,
        arguments: Mapping[str, Any],
        readers: Mapping[str, Sequence[Reader]],
        *,
        models: Sequence[str],
    ) -> str:
        """The key of a call with `arguments`; those in `readers` are read there instead, from the beginning."""
        definition = route.definition
        parts = [str(_FORM), self._definition(definition), route.cartridge.name, route.cartridge.manifest.version]
        for name in sorted(arguments):
            digest = hashlib.sha256()
            if name in readers:
                for reader in readers[name]:
                    async for entry in reader.entries():
                        await self._add(digest, entry)
                    digest.update(b"end of a source")
            else:
                argument = definition.argument(name)
                value = arguments[name]
                if not argument.is_sequence and not isinstance(value, Path):
                    value = encode_value(argument, value)
                await self._add(digest, value)
            parts.append(f"{definition.argument(name).name}={digest.hexdigest()}")
        return hashlib.sha256("\n".join([*parts, *models]).encode()).hexdigest()

    def _definition(self, definition: CapDefinition) -> str:
        found = self._definitions.get(id(definition))
        if found is None:
            found = self._definitions[id(definition)] = json.dumps(definition.to_plain(), sort_keys=True)
        return found

    async def _add(self, digest: Any, entry: Any) -> None:
        if isinstance(entry, Path):
            digest.update(b"file " + (await self._kept.file_hash(entry)).encode())
            return
        if isinstance(entry, Absent):
            entry = repr(entry)
        data = entry if isinstance(entry, bytes) else pack(entry)
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
