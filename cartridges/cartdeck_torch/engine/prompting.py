# pyright: basic
# Of tokenizers' names many have no types.
"""Owns the way from a request to the tokens that a model goes on from: its template, its tools, its images' places.

It does not know how they are computed.
"""

from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from cartdeck_modelkit.constraint import Constraint
from cartdeck_modelkit.dialogue.chat_template import ChatTemplate
from cartdeck_modelkit.dialogue.messages import Dialogue
from cartdeck_modelkit.dialogue.tools import (
    BARE,
    PYTHON_TAG,
    TAGGED,
    CallSyntax,
    call_grammar,
    explain_tools,
    fit_call_ids,
    syntax_of,
)
from cartdeck_modelkit.image import RgbImage
from cartdeck_protocol.errors import CartdeckError, Code, failure
from cartdeck_torch.engine.eyes import Eyes
from cartdeck_torch.engine.loading import check_ids
from cartdeck_torch.engine.vocabulary import PieceTable
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.generation import Generation, Question
from cartdeck_torch.parallel.work import SeenText


@dataclass(slots=True)
class Prompt:
    """Tokens, and what the model's forward takes beside them where images stand among them."""

    ids: list[int]
    images: dict[str, Any] = field(default_factory=dict)
    seen: SeenText | None = None
    """What the images were read from."""


class PromptMaker:
    """Makes prompts for one model."""

    def __init__(self, folder: ModelFolder, tokenizer: Tokenizer, pieces: PieceTable, *, sight: Eyes | None) -> None:
        self._name = folder.name
        self._tokenizer = tokenizer
        self._pieces = pieces
        self._sight = sight
        config = folder.record("tokenizer_config.json") or {}
        self._marks = {name: _content(config.get(f"{name}_token")) or "" for name in ("bos", "eos")}
        self._sources = _sources(folder, config)
        self._compiled: dict[str, ChatTemplate] = {}

    def make(self, generation: Generation) -> Prompt:
        """The prompt, checked against the vocabulary; `generation.syntax` is set where calls of tools may come.

        Raises `EMPTY_INPUT`, `UNSUPPORTED` for a model without a template and for images that it cannot see, what
        `ChatTemplate` raises, and `BAD_MODEL_FILE` for tokens that the model does not have.
        """
        question = generation.question
        if question is None:
            prompt, name = Prompt(self._plain(generation.prompt or "")), "prompt"
        else:
            prompt, name = self._ask(generation, question), "messages"
        if not prompt.ids:
            raise failure(Code.EMPTY_INPUT, f"the {name} is empty", argument=name, phase="inference")
        check_ids(prompt.ids, self._pieces.size, name=self._name)
        return prompt

    def constrain(self, generation: Generation) -> Constraint | None:
        """What each text is held to: its schema, or its tools; once the prompt is made.

        Raises `UNSUPPORTED_SCHEMA`, and `UNSUPPORTED` where constraints cannot be had.
        """
        if generation.settings.json_schema is not None:
            return self._pieces.maker("json-schema").from_json_schema(generation.settings.json_schema)
        if generation.syntax is None or generation.question is None:
            return None
        use = generation.question.tool_use
        required, single = use.is_required, use.is_single
        grammar = call_grammar(use.callable, generation.syntax, is_required=required, is_single=single)
        try:
            return self._pieces.maker("tools").from_lark(grammar)
        except CartdeckError as error:
            message = f"the tools' parameters cannot be held to: {error.message}"
            raise failure(Code.UNSUPPORTED_SCHEMA, message, argument="tools") from None

    def _plain(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=True).ids
        if not ids and self._marks["bos"]:
            token = self._tokenizer.token_to_id(self._marks["bos"])
            ids = [] if token is None else [token]
        return ids

    def _ask(self, generation: Generation, question: Question) -> Prompt:
        given, tools = question.dialogue, question.tool_use.callable
        dialogue = Dialogue([dict(message) for message in given.messages], given.images, given.marker)
        template = self._template(question.template, for_tools=bool(tools))
        definitions = [tool.definition for tool in tools]
        fit_call_ids(dialogue, template)
        if tools:
            generation.syntax = self._syntax(template)
            if generation.syntax is None:
                generation.syntax, definitions = TAGGED, []
                explain_tools(dialogue, tools)
        elif not template.takes_tools:
            explain_tools(dialogue, [])
        if question.pictures:
            return self._see(template, dialogue, question.pictures, definitions)
        text = template.render(dialogue.messages, tools=definitions)
        return Prompt(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _see(
        self, template: ChatTemplate, dialogue: Dialogue, pictures: list[RgbImage], definitions: list[dict[str, Any]]
    ) -> Prompt:
        if self._sight is None:
            message = f"{self._name} sees no images: it is a model of texts alone"
            raise failure(Code.UNSUPPORTED, message, argument="messages", phase="inference")
        mark, count = self._sight.mark, len(pictures)
        text = template.render([_in_parts(one, dialogue) for one in dialogue.messages], tools=definitions)
        if text.count(mark) != count or dialogue.marker in text:
            text = template.render(dialogue.messages, tools=definitions).replace(dialogue.marker, mark)
        if text.count(mark) != count:
            raise failure(
                Code.UNSUPPORTED,
                f"the dialogue's text has {text.count(mark)} places for images ({mark}), and there are {count} images",
                argument="messages",
                phase="inference",
            )
        return Prompt(*self._sight.read(text, pictures), seen=SeenText(text, dialogue.images))

    def _template(self, given: str | None, *, for_tools: bool) -> ChatTemplate:
        source = given or (self._sources.get("tool_use") if for_tools else None) or self._sources.get("default")
        if source is None:
            message = f"{self._name} has no chat template; chat-template takes one, or use generate-text"
            raise failure(Code.UNSUPPORTED, message, argument="chat-template", phase="inference")
        if source not in self._compiled:
            self._compiled.clear()  # a second one is one that was given
            self._compiled[source] = ChatTemplate(source, bos=self._marks["bos"], eos=self._marks["eos"])
        return self._compiled[source]

    def _syntax(self, template: ChatTemplate) -> CallSyntax | None:
        """How calls are written with this template; None where their closing marks are tokens that show in no text."""
        syntax = syntax_of(template)
        mark = PYTHON_TAG if syntax is BARE else syntax.opening if syntax is not None else ""
        if syntax is None or not mark:
            return syntax
        token = self._tokenizer.token_to_id(mark)
        if token is not None and not self._pieces.piece(token):
            return None if syntax.closing else syntax.behind(token)
        ids = self._tokenizer.encode(mark, add_special_tokens=False).ids
        is_plain = b"".join(map(self._pieces.piece, ids)) == mark.encode()
        return syntax if is_plain or syntax is BARE else None


def _in_parts(message: dict[str, Any], dialogue: Dialogue) -> dict[str, Any]:
    """The message with its content as a list of parts, which is how templates of models that see want it."""
    parts: list[dict[str, str]] = []
    for place, text in enumerate(str(message["content"]).split(dialogue.marker)):
        if place:
            parts.append({"type": "image"})
        if text:
            parts.append({"type": "text", "text": text})
    return {**message, "content": parts}


def _sources(folder: ModelFolder, config: dict[str, Any]) -> dict[str, str]:
    """The model's templates by their names; its own one is `default`."""
    file = folder.path / "chat_template.jinja"
    if file.is_file():
        return {"default": file.read_text("utf-8", errors="replace")}
    own = config.get("chat_template")
    if own is None:
        own = (folder.record("chat_template.json") or {}).get("chat_template")
    named = own if isinstance(own, list) else [{"name": "default", "template": own}]
    return {
        str(one.get("name")): one["template"]
        for one in named
        if isinstance(one, dict) and isinstance(one.get("template"), str)
    }


def _content(mark: Any) -> str | None:
    mark = mark.get("content") if isinstance(mark, dict) else mark
    return mark if isinstance(mark, str) else None
