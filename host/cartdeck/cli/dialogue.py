"""Owns what is said in `cartdeck chat`: messages so far, images that wait for the next one, lines that are commands.

It does not know the terminal, nor how an answer is made.
"""

import base64
import shlex
from pathlib import Path
from typing import Any, Final

from cartdeck.cli.image_file import check_image_bytes
from cartdeck_protocol.errors import Code, failure

HELP: Final = """\
/image FILE    show an image with the next message; may be repeated
/system TEXT   what the model is told before all else; without TEXT, nothing
/reset         forget the dialogue
/help          these lines
/quit          end, as Ctrl-D does
Any other line is said to the model; one that begins with // is said with one /."""


class Dialogue:
    """The messages in OpenAI's shape, and what is to go with the next one."""

    def __init__(self, *, system: str | None = None) -> None:
        self.system = system
        self.is_over = False
        self._messages: list[dict[str, Any]] = []
        self._images: list[dict[str, Any]] = []

    def messages(self) -> dict[str, Any]:
        """The dialogue as the cap takes it."""
        lead = [{"role": "system", "content": self.system}] if self.system else []
        return {"messages": [*lead, *self._messages]}

    def say(self, text: str) -> None:
        """Adds what the user says, with the images that wait."""
        images, self._images = self._images, []
        content = [*images, {"type": "text", "text": text}] if images else text
        self._messages.append({"role": "user", "content": content})

    def hear(self, text: str) -> None:
        """Adds the model's answer, or as much as there is of it; with none, what was said last is taken back."""
        if text:
            self._messages.append({"role": "assistant", "content": text})
        elif self._messages:
            self._messages.pop()

    def show(self, path: Path) -> None:
        """Has an image go with the next message. Raises `FILE_NOT_FOUND`, `BAD_ARGUMENT`, and what
        `check_image_bytes` raises."""
        try:
            data = path.expanduser().read_bytes()
        except FileNotFoundError:
            raise failure(Code.FILE_NOT_FOUND, f"There is no image {path}.") from None
        except OSError as error:
            message = f"The image {path} cannot be read: {error.strerror}."
            raise failure(Code.BAD_ARGUMENT, message) from None
        check_image_bytes(data, path)
        address = "data:image/png;base64," + base64.b64encode(data).decode("ascii")  # its bytes say what it is
        self._images.append({"type": "image_url", "image_url": {"url": address}})

    def obey(self, line: str) -> str | None:
        """What a line that is a command has to say; None for one that is to be said to the model."""
        if not line.startswith("/") or line.startswith("//"):
            return None
        command, _, rest = line.partition(" ")
        rest = rest.strip()
        if command == "/image":
            if not rest:
                raise failure(Code.BAD_ARGUMENT, "/image names no file; expected for instance: /image photo.jpg")
            path = _path(rest)
            self.show(path)
            return f"The next message shows {path}."
        if command == "/system":
            self.system = rest or None
            return "The model is told so from now on." if rest else "The model is told nothing beforehand."
        if command == "/reset":
            self._messages, self._images = [], []
            return "The dialogue is forgotten."
        if command in ("/quit", "/exit"):
            self.is_over = True
            return ""
        if command == "/help":
            return HELP
        raise failure(Code.BAD_ARGUMENT, f"{command[:40]} is no command here; /help lists them.")


def _path(text: str) -> Path:
    """The file that a line names: as a terminal writes one that is dropped into it, in quotes, or as it is."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that is part of the name
        words = []
    return Path(words[0] if len(words) == 1 else text)


def spoken(line: str) -> str:
    """What a line says to the model."""
    return line[1:] if line.startswith("//") else line
