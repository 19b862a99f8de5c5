"""Owns making a request's grammar or schema ready before anything is computed: checked, and made on the vocabulary.

It does not know how a token is drawn. What takes long runs in a worker thread: neither the event loop nor the owner's
thread waits for it.
"""

import asyncio
from typing import TYPE_CHECKING

from cartdeck_gguf.gbnf import check_gbnf
from cartdeck_gguf.generation import Generation
from cartdeck_modelkit.constraint.token_table import TokenTable
from cartdeck_modelkit.owner import Owner
from cartdeck_protocol.errors import Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf.llama import Model
    from cartdeck_modelkit.constraint.guidance import ConstraintMaker


class Constrainer:
    """Makes constraints on one model's vocabulary, which is made ready for them by the first that needs it."""

    def __init__(self, owner: Owner, model: "Model") -> None:
        self._owner = owner
        self._model = model
        self._turn = asyncio.Lock()
        self._maker: ConstraintMaker | None = None

    async def constrain(self, generation: Generation) -> None:
        """Checks the grammar that a request's settings name, and puts its schema's constraint into it.

        Raises `INVALID_GRAMMAR`, `UNSUPPORTED_SCHEMA`, and `CARTRIDGE_UNAVAILABLE` without llguidance.
        """
        settings = generation.settings
        if settings.grammar is not None:
            await asyncio.to_thread(check_gbnf, settings.grammar)
        if settings.json_schema is not None:
            maker = await self.maker()
            generation.constraint = await asyncio.to_thread(maker.from_json_schema, settings.json_schema)

    async def maker(self) -> "ConstraintMaker":
        """What makes constraints of schemas and grammars; a good part of a second for the first who asks."""
        async with self._turn:
            if self._maker is None:
                table = await asyncio.wrap_future(self._owner.start(self._model.token_table))
                self._maker = await asyncio.to_thread(_new_maker, table)
            return self._maker


def _new_maker(table: TokenTable) -> "ConstraintMaker":
    try:
        from cartdeck_modelkit.constraint.guidance import ConstraintMaker  # noqa: PLC0415 - only when it is needed
    except ImportError as error:
        raise failure(
            Code.CARTRIDGE_UNAVAILABLE,
            f"llguidance cannot be loaded ({error}); install it with: pip install 'cartdeck[gguf]'",
            argument="json-schema",
        ) from error
    return ConstraintMaker(table)
