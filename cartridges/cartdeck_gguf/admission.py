"""Owns making a request ready for its place: the prompt as tokens, what can never fit refused, a sampler for each text.

It does not know contexts. On the owner's thread, as soon as a request is submitted; `read_text` is for any thread.
"""

from typing import TYPE_CHECKING

from cartdeck_gguf.choice import Choice
from cartdeck_gguf.cutting import GivenUp, never
from cartdeck_gguf.generation import Generation
from cartdeck_gguf.prompt import Prompt
from cartdeck_protocol.errors import CartdeckError, Code, failure

if TYPE_CHECKING:
    from cartdeck_gguf.loading import LoadedModel


def read_prompt(generation: Generation, model: "LoadedModel") -> Prompt:
    """The prompt as tokens; what is known from them is counted. Raises `EMPTY_INPUT`, `CONTEXT_OVERFLOW`,
    `BAD_ARGUMENT`."""
    room, texts, prompt = model.context_size, generation.settings.texts, generation.prompt
    if isinstance(prompt, str):
        prompt = read_text(prompt, model)
    count = generation.prompt_tokens = len(prompt.tokens)
    if not count:
        raise failure(
            Code.EMPTY_INPUT,
            "the prompt is empty, and this model has no beginning-of-text token to start from",
            argument="prompt",
            phase="inference",
        )
    if count + texts > room:
        raise overflow(f"of {count:,} tokens", room, texts=texts, tokens=count)
    generation.max_tokens = min(generation.settings.max_tokens, (room - count) // texts)
    generation.most_tokens = generation.max_tokens * texts
    return prompt


def make_choices(generation: Generation, model: "LoadedModel") -> list[Choice]:
    """The texts of a request, nothing drawn yet. Raises `INVALID_GRAMMAR`, `BAD_ARGUMENT`."""
    choices: list[Choice] = []
    try:
        for index, seed in enumerate(generation.seeds):
            constraint = None if generation.constraint is None else generation.constraint.fork()
            sampler = model.new_sampler(generation.settings, seed, constraint)
            choices.append(Choice(generation, index, model=model.model, sampler=sampler))
    except BaseException:
        for choice in choices:
            choice.close()
        raise
    return choices


def read_text(text: str, model: "LoadedModel", is_given_up: GivenUp = never) -> Prompt:
    """The tokens of a prompt. Raises `CONTEXT_OVERFLOW`, `BAD_ARGUMENT`, and `CANCELLED` once it is given up."""
    room = model.context_size
    if len(text) > room * model.vocabulary.longest_token_bytes or model.model.exceeds(text, room, is_given_up):
        raise overflow(f"of {len(text):,} characters", room)
    unknown = model.vocabulary.unknown_characters(text)
    if unknown:
        raise failure(
            Code.BAD_ARGUMENT,
            f"this model's vocabulary has no token for {', '.join(map(repr, unknown[:10]))} in the prompt",
            argument="prompt",
            phase="inference",
        )
    return Prompt(model.model.tokenize(text, is_given_up))


def overflow(what: str, room: int, *, texts: int = 1, tokens: int | None = None) -> CartdeckError:
    """The error for a prompt that leaves no room in the context, in words that say what was found."""
    wanted = "one of which is for the answer" if texts == 1 else f"{texts} of which are for the answers"
    return failure(
        Code.CONTEXT_OVERFLOW,
        f"a prompt {what} does not fit a context of {room:,} tokens, {wanted}",
        argument="prompt",
        phase="inference",
        details={"prompt_tokens": tokens, "context_size": room},
    )
