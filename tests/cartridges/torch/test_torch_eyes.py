"""Language models that see: images spliced into a dialogue as the library does it, and described."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from cartdeck_protocol.errors import CartdeckError, Code
from cartdeck_torch.family import GRID_EYES, SEEING, Task, has_eyes, tasks_of
from cartdeck_torch.folder import read_folder

Make = Callable[..., Any]


def drawing(colour: str) -> bytes:
    image = Image.new("RGB", (50, 40), "grey")
    ImageDraw.Draw(image).ellipse([5, 5, 35, 35], fill=colour)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def said(*parts: bytes | str) -> list[dict[str, Any]]:
    def part(one: bytes | str) -> dict[str, Any]:
        if isinstance(one, str):
            return {"type": "text", "text": one}
        return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(one).decode()}}

    return [{"role": "user", "content": [part(one) for one in parts]}]


@pytest.mark.parametrize("kind", [kind for kind in SEEING if kind not in GRID_EYES])
def test_an_answer_about_images_is_that_of_the_library(
    kind: str, make_seeing: Make, open_generator: Make, make_text: Make
) -> None:
    import transformers

    path = make_seeing(kind)
    text, made = make_text(open_generator(path), messages=said(drawing("red"), "and", drawing("blue"), "?"))
    processor = transformers.AutoProcessor.from_pretrained(path)
    images = [Image.open(io.BytesIO(drawing(colour))) for colour in ("red", "blue")]
    given = processor(
        text=["<user><image>and<image>?<assistant>"], images=[images], add_special_tokens=False, return_tensors="pt"
    )
    model = transformers.AutoModelForImageTextToText.from_pretrained(path)
    out = model.generate(**given, max_new_tokens=12, do_sample=False, pad_token_id=257)
    theirs = [token for token in out[0, given["input_ids"].shape[1] :].tolist() if token < 256]
    assert text == bytes(theirs).decode(errors="replace")
    assert made.prompt_tokens == given["input_ids"].shape[1]


@pytest.mark.parametrize("kind", GRID_EYES)
def test_images_are_patches_with_the_places_that_the_library_gives_them(
    kind: str, make_seeing: Make, open_generator: Make, make_text: Make
) -> None:
    import torch
    import transformers

    path = make_seeing(kind)
    ours = open_generator(path)
    asked = {"messages": said(drawing("red"), "and", drawing("blue"), "?"), "max_tokens": 20}
    text, made = make_text(ours, **asked)
    pixels = transformers.Qwen2VLImageProcessorPil.from_pretrained(path)
    images = [Image.open(io.BytesIO(drawing(colour))) for colour in ("red", "blue")]
    given = pixels(images, return_tensors="pt")
    marks = [[258] * (int(grid.prod()) // 4) for grid in given["image_grid_thw"]]
    assert [len(one) for one in marks] == [12, 12]
    ids = [*b"<user>", *marks[0], *b"and", *marks[1], *b"?<assistant>"]
    given |= {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    given["mm_token_type_ids"] = (given["input_ids"] == 258).int()
    model = transformers.AutoModelForImageTextToText.from_pretrained(path)
    out = model.generate(**given, max_new_tokens=20, do_sample=False, pad_token_id=257)
    theirs = [token for token in out[0, len(ids) :].tolist() if token < 256]
    assert text == bytes(theirs).decode(errors="replace")
    assert made.prompt_tokens == len(ids)
    again = make_text(ours, "x" * 600)[0]  # in two slices, the second behind what an image left
    assert again == make_text(open_generator(path), "x" * 600)[0]
    assert make_text(ours, **asked)[0] == text


def test_a_folder_has_eyes_where_it_holds_a_tower_and_says_how_images_are_prepared(
    make_causal: Make, make_seeing: Make, tmp_path: Path
) -> None:
    without_tower = with_other_weights(make_seeing("qwen3_5"), make_causal("qwen3_5_text"), tmp_path)
    folders = [read_folder(path) for path in (make_seeing("qwen3_5"), make_causal("qwen3_5"), without_tower)]
    assert [has_eyes(one) for one in folders] == [True, False, False]
    assert [Task.DESCRIBE in tasks_of(one) for one in folders] == [True, False, False]


def with_other_weights(seeing: Path, text: Path, place: Path) -> Path:
    """The text's weights beside all else of the model that sees."""
    for file in seeing.iterdir():
        source = text if file.suffix == ".safetensors" else seeing
        (place / file.name).write_bytes((source / file.name).read_bytes())
    return place


def test_what_is_said_depends_on_what_is_seen_and_each_time_alike(
    make_seeing: Make, open_generator: Make, make_text: Make
) -> None:
    for cache in ("dynamic", "static"):
        model = open_generator(make_seeing("llava"), kv_cache=cache)
        texts = [make_text(model, messages=said(drawing(one), "?"))[0] for one in ("red", "blue", "red")]
        assert texts[0] == texts[2] != texts[1]


def test_a_text_that_holds_the_mark_of_an_image_is_refused(
    make_seeing: Make, open_generator: Make, make_text: Make
) -> None:
    model = open_generator(make_seeing("llava"))
    with pytest.raises(CartdeckError, match="2 places for images") as caught:
        make_text(model, messages=said(drawing("red"), "what is <image>?"))
    assert caught.value.code is Code.UNSUPPORTED


def test_a_template_of_plain_texts_takes_images_too(make_seeing: Make, open_generator: Make, make_text: Make) -> None:
    model = open_generator(make_seeing("llava"))
    plain = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
    own, _ = make_text(model, messages=said(drawing("red"), "?"))
    assert make_text(model, messages=said(drawing("red"), "?"), template=plain)[0] == own
