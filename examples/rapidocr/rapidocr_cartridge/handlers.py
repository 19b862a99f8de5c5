"""What rapidocr does: lines are found first, then read one by one, so that each leaves when it was read."""

from cartdeck_protocol.errors import Code, failure
from cartdeck_sdk import Cartridge, Output, Report, Request
from rapidocr_cartridge.reader import Reader

cartridge = Cartridge("rapidocr_cartridge")
_FOUND = 0.3
"""The share of finding the lines in a call's progress."""
_reader: list[Reader] = []
"""One for the process, made by its first call."""


@cartridge.handles("read-text", needs=("least-confidence",))
async def read_text(request: Request, output: Output) -> None:
    if not request["image"]:
        raise failure(Code.EMPTY_INPUT, "found an image of 0 bytes, expected an image file", argument="image")

    def load(_: Report) -> None:
        if not _reader:
            _reader.append(Reader())

    await output.run_with_keepalive(0.0, "loading the models", load, phase="load")
    [reader] = _reader
    page = await output.run_with_keepalive(
        0.1, "looking for lines", lambda _: reader.find(request["image"]), phase="find"
    )
    read = 0
    for number, box in enumerate(page.boxes, start=1):
        line = await output.run_with_keepalive(
            _FOUND + (1 - _FOUND) * (number - 1) / len(page.boxes),
            f"line {number} of {len(page.boxes)}",
            lambda _, box=box: reader.read(page, box),
            phase="read",
        )
        output.progress(
            _FOUND + (1 - _FOUND) * number / len(page.boxes), phase="read", work=number, total=len(page.boxes)
        )
        if line is not None and line.confidence >= request["least-confidence"]:
            read += 1
            await output.write(line.text + "\n")
            await output.stream("lines").item({"text": line.text, "confidence": line.confidence, "box": box})
    output.finish(provenance={"engine": reader.version, "lines": read})
