"""Owns the caps about tokens: vocabulary, tokenize, detokenize.

It does not know llama.cpp, nor weights; importing it loads no engine.
"""

import asyncio
import json
from typing import Any, Final, cast

from cartdeck_gguf.serving import cartridge, instance, new_provenance, obtain, run_on
from cartdeck_gguf.tokenizer import Tokenizer, open_tokenizer
from cartdeck_modelkit.owner import Owner
from cartdeck_modelkit.phases import ObtainedModel
from cartdeck_modelkit.provenance import Provenance
from cartdeck_protocol.errors import Code, failure
from cartdeck_protocol.progress import INFERENCE, LOADING
from cartdeck_sdk import Output, Request

TOKENS_AT_A_TIME: Final = 2048
"""Read in one step off the event loop, between two writes."""


owner: Final = Owner("vocabulary-owner")


class TokenizerOfProcess:
    """The vocabulary that this process keeps for `tokenize` and `detokenize`: their instance."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._spec: str | None = None
        self._obtained: ObtainedModel | None = None
        self._tokenizer: Tokenizer | None = None

    async def ready(self, request: Request, output: Output, provenance: Provenance) -> Tokenizer:
        """The vocabulary of the request's model; to be used on the owner's thread alone.

        Raises what obtaining and loading raise, and `UNSUPPORTED` for another model than the process holds.
        """
        spec = request["model"]
        async with self._turn:
            if self._tokenizer is None or self._obtained is None:
                self._obtained = await obtain(request, provenance)
                there = instance.in_memory(spec)
                if there is not None:
                    self._tokenizer = Tokenizer(there.model, there.vocabulary)
                else:
                    self._tokenizer = await load_tokenizer(request, output, self._obtained)
                self._spec = spec
            elif spec != self._spec:
                message = f"this process holds {self._spec}, and the request wants {spec}; start another one for it"
                raise failure(Code.UNSUPPORTED, message, argument="model")
            provenance.model.revision, provenance.model.sha256 = self._obtained.revision, self._obtained.sha256
            provenance.engine_version = self._tokenizer.engine_version
            return self._tokenizer


kept: Final = TokenizerOfProcess()


async def load_tokenizer(request: Request, output: Output, obtained: ObtainedModel) -> Tokenizer:
    """The vocabulary of the model, loaded on the owner's thread."""

    def load() -> Tokenizer:
        tokenizer = open_tokenizer(obtained.path)
        if request.is_cancelled:  # nobody takes it
            tokenizer.close()
        return tokenizer

    message = f"Loading the vocabulary of {obtained.path.name}"
    return await output.run_with_keepalive(LOADING.base, message, lambda _: owner.call(load), phase="load")


@cartridge.handles("vocabulary", needs=("model",))
async def vocabulary(request: Request, output: Output) -> None:
    """Lists every token of the model."""
    provenance = new_provenance(request["model"])
    obtained = await obtain(request, provenance)
    tokenizer = await load_tokenizer(request, output, obtained)
    try:
        provenance.engine_version = tokenizer.engine_version
        for start in range(0, tokenizer.size, TOKENS_AT_A_TIME):
            span = range(start, min(start + TOKENS_AT_A_TIME, tokenizer.size))
            for record in await run_on(owner, lambda span=span: tokenizer.records(span)):
                await output.item(record)
            fraction = INFERENCE.at(span.stop / tokenizer.size)
            output.progress(fraction, "Listing tokens", phase="inference", work=span.stop, total=tokenizer.size)
    finally:
        owner.start(tokenizer.close)
    output.finish(provenance=provenance.record())


@cartridge.handles("tokenize", needs=("text", "model", "add-special", "read-special"))
async def tokenize(request: Request, output: Output) -> None:
    """Cuts the text."""
    provenance = new_provenance(request["model"])
    tokenizer = await kept.ready(request, output, provenance)
    adds, reads = request["add-special"], request["read-special"]
    ids = await run_on(owner, lambda: tokenizer.encode(request["text"], adds_special=adds, reads_special=reads))
    provenance.usage.prompt_tokens = len(ids)
    await output.write(json.dumps(ids, separators=(",", ":")))
    output.finish(provenance=provenance.record())


@cartridge.handles("detokenize", needs=("ids", "model", "show-special"))
async def detokenize(request: Request, output: Output) -> None:
    """Puts the tokens together."""
    given: Any = request["ids"]
    if not isinstance(given, list):
        message = f"ids is {json.dumps(given)[:60]}, expected a list of token ids"
        raise failure(Code.BAD_ARGUMENT, message, argument="ids")
    ids = cast("list[Any]", given)
    provenance = new_provenance(request["model"])
    tokenizer = await kept.ready(request, output, provenance)
    shows = request["show-special"]
    text = await run_on(owner, lambda: tokenizer.decode(ids, shows_special=shows))
    await output.write(text)
    output.finish(provenance=provenance.record())
