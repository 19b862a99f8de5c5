# pyright: basic
# Of transformers' names many have no types.
"""Owns the way from messages to the text that a model goes on from: its own template, in jinja2's sandbox.

It does not know tokens.
"""

from typing import Any

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from cartdeck_protocol.errors import Code, failure
from cartdeck_torch.folder import ModelFolder
from cartdeck_torch.generation import Dialogue


class ChatText:
    """The template of one model."""

    def __init__(self, folder: ModelFolder) -> None:
        config = folder.record("tokenizer_config.json") or {}
        file = folder.path / "chat_template.jinja"
        own = file.read_text("utf-8") if file.is_file() else config.get("chat_template")
        self._template = own if isinstance(own, str) else None
        self._marks = {name: _content(config.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        self.begin = self._marks["bos_token"]
        """The mark at the beginning of a text; None where the model has none."""

    def render(self, dialogue: Dialogue) -> str:
        """The text up to where the answer begins. Raises `UNSUPPORTED` for a model without a template or one that
        fails, `BAD_ARGUMENT` for a dialogue that it refuses."""
        template = dialogue.template or self._template
        if template is None:
            message = "the model has no chat template; chat-template takes one, or use generate-text"
            raise failure(Code.UNSUPPORTED, message, argument="model", phase="inference")
        marks: dict[str, Any] = {name: text for name, text in self._marks.items() if text is not None}
        tools: list[Any] | None = dialogue.tools
        try:
            (text,), _ = render_jinja_template(
                conversations=[dialogue.messages],
                chat_template=template,
                tools=tools,
                add_generation_prompt=True,
                **marks,
            )
        except TemplateError as error:
            message = f"the model's chat template refuses this dialogue: {str(error)[:300]}"
            raise failure(Code.BAD_ARGUMENT, message, argument="messages", phase="inference") from None
        except Exception as error:  # a template may fail in any way that an expression can
            message = f"the model's chat template cannot be used: {type(error).__name__}: {str(error)[:300]}"
            raise failure(Code.UNSUPPORTED, message, argument="chat-template", phase="inference") from None
        return text


def _content(mark: Any) -> str | None:
    mark = mark.get("content") if isinstance(mark, dict) else mark
    return mark if isinstance(mark, str) else None
