"""Images: near the texts that say what they show, and described, on small models trained on coloured shapes."""

import base64
import io
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from cartdeck import Data, Engine, Progress
from cartdeck_protocol.errors import CartdeckError, Code

MODELS = Path(__file__).resolve().parents[2] / "data" / "models"
WithEngine = Callable[[Callable[[Engine], Awaitable[Any]]], Any]
COLOURS = {"red": (220, 30, 30), "green": (30, 170, 60), "blue": (40, 70, 220), "yellow": (240, 210, 40)}


def drawing(colour: str, *, kind: str = "PNG", size: int = 128) -> bytes:
    """A circle of the colour on grey, as a file."""
    image = Image.new("RGB", (size, size), (120, 120, 120))
    edge = size // 4
    ImageDraw.Draw(image).ellipse([edge, edge, size - edge, size - edge], fill=COLOURS[colour])
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


async def each(items: list[Any]) -> Any:
    for item in items:
        yield item


async def vectors_of(engine: Engine, cap: str, name: str, items: list[Any], **changes: Any) -> list[list[float]]:
    arguments = {"model": str(MODELS / "tiny-clip"), name: each(items), "threads": 1, **changes}
    found: list[list[float]] = []
    async with engine.call(cap, arguments) as call:
        async for event in call:
            if isinstance(event, Data):
                found.append(list(struct.unpack(f"<{len(event.value) // 4}f", event.value)))
    return found


def closeness(left: list[float], right: list[float]) -> float:
    return sum(one * other for one, other in zip(left, right, strict=True))


def test_an_image_lies_nearest_to_the_text_that_says_what_it_shows(with_engine: WithEngine) -> None:
    async def use(engine: Engine) -> None:
        texts = [f"a photo of a {colour} circle" for colour in COLOURS]
        images = [drawing(colour) for colour in COLOURS]
        said = await vectors_of(engine, "cap:embed-text;torch", "texts", texts)
        seen = await vectors_of(engine, "cap:embed-image;torch", "images", images)
        assert [len(vector) for vector in (*said, *seen)] == [64] * 8
        for index, vector in enumerate(seen):
            near = [closeness(vector, text) for text in said]
            assert near.index(max(near)) == index
            assert closeness(vector, vector) == pytest.approx(1, abs=1e-5)
        (alone,) = await vectors_of(engine, "cap:embed-image;torch", "images", images[:1])
        assert alone == pytest.approx(seen[0], abs=1e-5)

    with_engine(use)


def test_a_vector_of_an_image_does_not_depend_on_its_format(with_engine: WithEngine) -> None:
    async def use(engine: Engine) -> None:
        files = [drawing("red", kind=kind) for kind in ("PNG", "BMP", "TIFF", "WEBP", "JPEG")]
        png, *others = await vectors_of(engine, "cap:embed-image;torch", "images", files)
        assert all(closeness(png, other) > 0.97 for other in others)

    with_engine(use)


@pytest.mark.parametrize("colour", COLOURS)
def test_an_image_is_described_in_words_that_come_one_by_one(with_engine: WithEngine, colour: str) -> None:
    async def use(engine: Engine) -> None:
        arguments = {"model": str(MODELS / "tiny-blip"), "image": drawing(colour), "threads": 1}
        async with engine.call("cap:describe-image;torch", arguments) as call:
            events = [event async for event in call]
        pieces = [event.value.decode() for event in events if isinstance(event, Data)]
        assert "".join(pieces) == f"a photo of a {colour} circle"
        made = events[-1].provenance
        assert (made["finish_reason"], made["usage"]["completion_tokens"]) == ("stop", 6)
        assert "inference" in {event.phase for event in events if isinstance(event, Progress)}
        begun = await engine.run("cap:describe-image;torch", {**arguments, "prompt": "a photo of"})
        assert begun.text.strip() == f"a {colour} circle"
        cut = await engine.run("cap:describe-image;torch", {**arguments, "max-tokens": 2})
        assert (cut.text, cut.provenance["finish_reason"]) == ("a photo", "length")

    with_engine(use)


def test_what_is_no_image_is_refused_with_its_place_and_the_model_goes_on(with_engine: WithEngine) -> None:
    async def use(engine: Engine) -> None:
        async def error_of(items: list[Any]) -> CartdeckError:
            with pytest.raises(CartdeckError) as caught:
                await vectors_of(engine, "cap:embed-image;torch", "images", items)
            return caught.value

        cut = drawing("red", kind="JPEG")
        error = await error_of([drawing("red"), drawing("blue"), cut[: len(cut) * 6 // 10]])
        assert (error.code, error.details["index"]) == (Code.BAD_IMAGE, 2)
        assert (await error_of([b"<svg xmlns='http://www.w3.org/2000/svg'/>"])).code is Code.BAD_IMAGE
        assert (await error_of([b""])).code is Code.EMPTY_INPUT
        assert len(await vectors_of(engine, "cap:embed-image;torch", "images", [drawing("red")])) == 1

    with_engine(use)


def test_an_image_is_looked_at_before_a_model_is_obtained_for_it(with_engine: WithEngine) -> None:
    async def use(engine: Engine) -> None:
        url = "data:image/png;base64," + base64.b64encode(b"<svg></svg>").decode()
        shown = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        for cap, name, value in (
            ("describe-image", "image", b"<svg></svg>"),
            ("chat", "messages", {"messages": shown}),
        ):
            with pytest.raises(CartdeckError) as caught:
                await engine.run(f"cap:{cap};torch", {"model": "hf:owner/not-asked-for", name: value})
            assert (caught.value.code, caught.value.argument) == (Code.BAD_IMAGE, name)

    with_engine(use)


def test_a_model_for_texts_and_one_for_speech_are_told_from_one_for_images(
    with_engine: WithEngine, tiny_bert: Path
) -> None:
    async def use(engine: Engine) -> None:
        arguments = {"model": str(tiny_bert), "image": drawing("red"), "threads": 1}
        with pytest.raises(CartdeckError, match="made for embedding texts") as caught:
            await engine.run("cap:describe-image;torch", arguments)
        assert caught.value.code is Code.UNSUPPORTED

    with_engine(use)


def test_pixels_are_prepared_as_the_library_prepares_them() -> None:
    import numpy as np
    import transformers

    from cartdeck_modelkit.image import decode_image
    from cartdeck_torch.engine.pixels import PixelReader
    from cartdeck_torch.folder import read_folder

    data = drawing("green", size=200)
    for name, kind in (("tiny-clip", "CLIPImageProcessorPil"), ("tiny-blip", "BlipImageProcessorPil")):
        ours = PixelReader(read_folder(MODELS / name)).read([decode_image(data)]).numpy()
        processor = getattr(transformers, kind).from_pretrained(MODELS / name)
        theirs = processor(Image.open(io.BytesIO(data)).convert("RGB"), return_tensors="np")["pixel_values"]
        assert np.abs(ours - np.asarray(theirs)).max() < 1e-6
