"""What hibari does: sentence by sentence, so that progress counts what was said."""

from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Cartridge, Output, Report, Request
from hibari_cartridge.voice import Voice

cartridge = Cartridge("hibari_cartridge")
_LOADED = 0.2
_voice: list[Voice] = []
"""One for the process, made by its first call."""


@cartridge.handles("speak", needs=("speed", "seed"))
async def speak(request: Request, output: Output) -> None:
    text = request["text"]
    if not text.strip():
        raise failure(Code.EMPTY_INPUT, "found a text of nothing but blanks, expected words", argument="text")

    def load(_: Report) -> None:
        if not _voice:
            _voice.append(Voice())

    await output.run_with_keepalive(0.0, "loading the voice", load, phase="load")
    [voice] = _voice

    def say(report: Report) -> bytes:
        def on_sentence(done: int, total: int) -> None:
            request.raise_if_cancelled()
            report(_LOADED + (1 - _LOADED) * done / total, f"sentence {done} of {total}", done, total)

        return voice.say(text, speed=request["speed"], seed=request["seed"], on_sentence=on_sentence)

    await output.write(await output.run_with_keepalive(_LOADED, "speaking", say, phase="inference"))
    output.finish(provenance={"engine": voice.version, "seed": request["seed"]})
