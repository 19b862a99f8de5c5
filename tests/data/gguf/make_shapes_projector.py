"""Makes shapes-mmproj-576.gguf: a small vision tower and a LLaVA projector that let SmolLM2-135M see coloured shapes.

It is run by hand, once, in an environment with torch, transformers and Pillow; half an hour on one core:

    python make_shapes_projector.py LANGUAGE_MODEL_FOLDER OUT.gguf [STEPS]

LANGUAGE_MODEL_FOLDER holds SmolLM2-135M-Instruct as transformers keeps it; it stays frozen. First the tower alone
learns colour and shape, then tower and projector learn to make the model say them. The graph is the one that llama.cpp
runs for LLaVA without a class token; it runs one block fewer than the file counts, so the last one is written twice.
"""

import math
import random
import struct
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

SIZE, PATCH, WIDTH, HEADS, INNER, LAYERS = 64, 16, 96, 3, 192, 3
TOWER_STEPS, STEPS = 2500, 700
COLOURS = {
    "red": (220, 30, 30), "green": (30, 170, 60), "blue": (40, 70, 220), "yellow": (240, 210, 40),
    "purple": (140, 50, 170), "orange": (240, 130, 20), "black": (15, 15, 15), "white": (245, 245, 245),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "star")
CLASSES = [(colour, shape) for colour in COLOURS for shape in SHAPES]
SYSTEM = (
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the human's questions.\nUSER: "
)
QUESTIONS = (
    ("What is in the image?", "a {colour} {shape}"),
    ("Describe the image.", "a {colour} {shape}"),
    ("What color is it?", "{colour}"),
    ("What shape is it?", "{shape}"),
)


def draw(colour: str, shape: str, dice: random.Random) -> Image.Image:
    """A shape of any size and place on a grey ground."""
    ground = tuple(dice.randint(90, 165) for _ in range(3))
    image = Image.new("RGB", (SIZE, SIZE), ground)
    pen = ImageDraw.Draw(image)
    radius = dice.randint(int(SIZE * 0.22), int(SIZE * 0.36))
    x, y = (dice.randint(radius + 2, SIZE - radius - 3) for _ in range(2))
    paint = tuple(max(0, min(255, value + dice.randint(-15, 15))) for value in COLOURS[colour])
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape == "circle":
        pen.ellipse(box, fill=paint)
    elif shape == "square":
        pen.rectangle(box, fill=paint)
    else:
        corners = 3 if shape == "triangle" else 10
        points = []
        for index in range(corners):
            angle = -math.pi / 2 + index * 2 * math.pi / corners
            reach = radius * (0.42 if shape == "star" and index % 2 else 1.0)
            points.append((x + reach * math.cos(angle), y + reach * math.sin(angle)))
        pen.polygon(points, fill=paint)
    return image


def pixels(images: list[Image.Image]) -> torch.Tensor:
    """[images, 3, SIZE, SIZE] in -1 to 1."""
    stacked = numpy.stack([numpy.asarray(one, "float32").transpose(2, 0, 1) for one in images])
    return torch.from_numpy(stacked / 127.5 - 1.0)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        count, places, width = state.shape
        normed = self.ln1(state)
        heads = [one(normed).view(count, places, HEADS, -1).transpose(1, 2) for one in (self.q, self.k, self.v)]
        seen = functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(count, places, width)
        state = state + self.o(seen)
        return state + self.down(functional.gelu(self.up(self.ln2(state)), approximate="tanh"))


class Eyes(nn.Module):
    """The tower and the projector."""

    def __init__(self, model_width: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(torch.randn((SIZE // PATCH) ** 2, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.post = nn.LayerNorm(WIDTH)
        self.mm0, self.mm2 = nn.Linear(WIDTH, model_width), nn.Linear(model_width, model_width)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        state = self.patch(images).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            state = block(state)
        return self.post(state)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.mm2(functional.gelu(self.mm0(self.features(images)), approximate="tanh"))


def teach_tower(eyes: Eyes, dice: random.Random) -> None:
    """The tower alone learns to tell colours and shapes apart: cheap, and a good beginning."""
    colour_head, shape_head = nn.Linear(WIDTH, len(COLOURS)), nn.Linear(WIDTH, len(SHAPES))
    learnt = [*eyes.parameters(), *colour_head.parameters(), *shape_head.parameters()]
    optimizer = torch.optim.AdamW(learnt, 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, TOWER_STEPS)
    names = list(COLOURS)
    for _ in range(TOWER_STEPS):
        classes = [dice.choice(CLASSES) for _ in range(48)]
        mean = eyes.features(pixels([draw(*one, dice) for one in classes])).mean(1)
        colours = torch.tensor([names.index(colour) for colour, _ in classes])
        shapes = torch.tensor([SHAPES.index(shape) for _, shape in classes])
        loss = functional.cross_entropy(colour_head(mean), colours)
        loss = loss + functional.cross_entropy(shape_head(mean), shapes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def teach_projector(eyes: Eyes, model: Any, tokenizer: Any, dice: random.Random, steps: int) -> None:
    """Tower and projector learn what makes the frozen model give the answer."""
    embed, batch = model.get_input_embeddings(), 8
    projector = [*eyes.mm0.parameters(), *eyes.mm2.parameters()]
    tower = [weight for name, weight in eyes.named_parameters() if not name.startswith("mm")]
    groups = [{"params": projector, "lr": 2e-3}, {"params": tower, "lr": 2e-4}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    with torch.no_grad():
        base = model(tokenizer(SYSTEM, return_tensors="pt").input_ids, use_cache=True).past_key_values
    for step in range(steps):
        rate = min(1.0, (step + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 2e-3 * rate, 2e-4 * rate
        question, answer = dice.choice(QUESTIONS)
        classes = [dice.choice(CLASSES) for _ in range(batch)]
        seen = eyes(pixels([draw(*one, dice) for one in classes]))
        asked = tokenizer(f"{question}\nASSISTANT: ", return_tensors="pt").input_ids.expand(batch, -1)
        answers = [[*tokenizer(answer.format(colour=c, shape=s)).input_ids, tokenizer.eos_token_id] for c, s in classes]
        longest = max(map(len, answers))
        wanted = torch.full((batch, longest), -100)
        given = torch.full((batch, longest), tokenizer.eos_token_id)
        for row, ids in enumerate(answers):
            wanted[row, : len(ids)] = given[row, : len(ids)] = torch.tensor(ids)
        cache = DynamicCache()
        for number, layer in enumerate(base.layers):
            cache.update(layer.keys.expand(batch, -1, -1, -1), layer.values.expand(batch, -1, -1, -1), number)
        inputs = torch.cat([seen, embed(asked), embed(given)], 1)
        states = model.model(inputs_embeds=inputs, past_key_values=cache, use_cache=True).last_hidden_state
        start = seen.shape[1] + asked.shape[1] - 1
        logits = model.lm_head(states[:, start : start + longest])
        loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), wanted.reshape(-1), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(eyes.parameters(), 1.0)
        optimizer.step()


def metadata(model_width: int) -> dict[str, Any]:
    return {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "general.name": "tiny-llava-mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "mlp",
        "clip.use_gelu": True,  # the approximation by tanh
        "clip.vision.image_size": SIZE,
        "clip.vision.patch_size": PATCH,
        "clip.vision.embedding_length": WIDTH,
        "clip.vision.feed_forward_length": INNER,
        "clip.vision.projection_dim": model_width,
        "clip.vision.block_count": LAYERS + 1,
        "clip.vision.attention.head_count": HEADS,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.image_mean": [0.5] * 3,
        "clip.vision.image_std": [0.5] * 3,
    }


def tensors(eyes: Eyes) -> dict[str, numpy.ndarray]:
    """The weights under llama.cpp's names."""
    parts: dict[str, nn.Module] = {
        "v.patch_embd": eyes.patch,
        "v.post_ln": eyes.post,
        "mm.0": eyes.mm0,
        "mm.2": eyes.mm2,
    }
    names = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_out", "up": "ffn_up", "down": "ffn_down"}
    for number in range(LAYERS + 1):
        block = eyes.blocks[min(number, LAYERS - 1)]
        for name in ("ln1", "ln2", *names):
            parts[f"v.blk.{number}.{names.get(name, name)}"] = getattr(block, name)
    found = {f"{name}.{kind}": getattr(part, kind) for name, part in parts.items() for kind in ("weight", "bias")}
    found["v.position_embd.weight"] = eyes.places
    return {name: value.detach().float().numpy() for name, value in found.items()}


def packed_string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def packed_value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + packed_string(value)
        case _:
            return struct.pack("<IIQ", 9, 6, len(value)) + struct.pack(f"<{len(value)}f", *value)


def write_gguf(path: Path, pairs: dict[str, Any], weights: dict[str, numpy.ndarray]) -> None:
    table, data = b"", b""
    for name, values in weights.items():
        table += packed_string(name) + struct.pack("<I", values.ndim)
        table += struct.pack(f"<{values.ndim}Q", *reversed(values.shape)) + struct.pack("<IQ", 0, len(data))
        data += values.astype("<f4").tobytes()
        data += b"\0" * (-len(data) % 32)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(pairs))
    header += b"".join(packed_string(key) + packed_value(value) for key, value in pairs.items()) + table
    path.write_bytes(header + b"\0" * (-len(header) % 32) + data)


def main(folder: str, out: str, steps: int = STEPS) -> None:
    torch.manual_seed(0)
    dice = random.Random(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for weight in model.parameters():
        weight.requires_grad_(False)
    eyes = Eyes(model.config.hidden_size)
    teach_tower(eyes, dice)
    teach_projector(eyes, model, tokenizer, dice, steps)
    write_gguf(Path(out), metadata(model.config.hidden_size), tensors(eyes))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:4]))
