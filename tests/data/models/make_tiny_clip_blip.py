"""Makes the small CLIP and BLIP folders beside it: of the true architectures, trained on coloured shapes that it draws,
so that what they say means something. The same bytes each time, for one version of torch.

usage: make_tiny_clip_blip.py OUT_FOLDER --train [--only=clip|blip]    (26 s and 100 s on one core)
"""

import json
import math
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BertTokenizer,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipImageProcessor,
    BlipProcessor,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    CLIPTokenizer,
)

COLORS = {
    "red": (220, 30, 30),
    "green": (30, 170, 60),
    "blue": (40, 70, 220),
    "yellow": (240, 210, 40),
    "purple": (140, 50, 170),
    "orange": (240, 130, 20),
    "black": (15, 15, 15),
    "white": (245, 245, 245),
}
SHAPES = ["circle", "square", "triangle", "star"]
SIZE = 64


def draw(color, shape, rng, size=SIZE):
    bg = tuple(rng.randint(90, 165) for _ in range(3))
    im = Image.new("RGB", (size, size), bg)
    d = ImageDraw.Draw(im)
    r = rng.randint(int(size * 0.22), int(size * 0.36))
    cx, cy = (rng.randint(r + 2, size - r - 3) for _ in "xy")
    c = tuple(max(0, min(255, v + rng.randint(-15, 15))) for v in COLORS[color])
    if shape == "circle":
        d.ellipse([cx - r, cy - r, cx + r, cy + r], fill=c)
    elif shape == "square":
        d.rectangle([cx - r, cy - r, cx + r, cy + r], fill=c)
    else:
        n, k = (3, 1.0) if shape == "triangle" else (5, 0.42)
        p = []
        for i in range(n if shape == "triangle" else 2 * n):
            a = -math.pi / 2 + i * (2 * math.pi / n if shape == "triangle" else math.pi / n)
            q = r if (shape == "triangle" or i % 2 == 0) else r * k
            p.append((cx + q * math.cos(a), cy + q * math.sin(a)))
        d.polygon(p, fill=c)
    return im


MEAN, STD = (
    np.array([0.48145466, 0.4578275, 0.40821073], "float32"),
    np.array([0.26862954, 0.26130258, 0.27577711], "float32"),
)


def pix(ims):  # what the CLIP/BLIP image processors compute for images that already have the right size
    return torch.from_numpy(np.stack([((np.asarray(i, "float32") / 255 - MEAN) / STD).transpose(2, 0, 1) for i in ims]))


TEMPL = ["a {c} {s}", "a photo of a {c} {s}", "a picture of a {c} {s}", "there is a {c} {s}", "the {s} is {c}"]


def corpus():
    return [t.format(c=c, s=s) for t in TEMPL for c in COLORS for s in SHAPES] + [
        "an image of an object on a gray background",
        "a dog and a cat",
    ]


def clip_tokenizer(dst):
    tok = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    tok.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tr = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|startoftext|>", "<|endoftext|>"],
        end_of_word_suffix="</w>",
        show_progress=False,
        initial_alphabet=list("abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"),
    )
    tok.train_from_iterator(corpus() * 3, tr)
    m = json.loads(tok.to_str())["model"]
    v = dict(m["vocab"])
    for ch in list("abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"):
        for k in (ch, ch + "</w>"):
            v.setdefault(k, len(v))
    merges = [tuple(x) if isinstance(x, (list, tuple)) else tuple(x.split()) for x in m["merges"]]
    # special tokens last, as in the real CLIP vocabulary
    keep = [k for k, _ in sorted(v.items(), key=lambda z: z[1]) if not k.startswith("<|")] + [
        "<|startoftext|>",
        "<|endoftext|>",
    ]
    v = {k: i for i, k in enumerate(keep)}
    Path(dst).mkdir(parents=True, exist_ok=True)
    Path(dst, "vocab.json").write_text(json.dumps(v))
    Path(dst, "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(x) for x in merges) + "\n")
    t = CLIPTokenizer(vocab=v, merges=merges, model_max_length=32)
    t.save_pretrained(dst)
    return CLIPTokenizer.from_pretrained(dst)


def make_clip(out, train, steps=700, bs=64):
    torch.manual_seed(0)
    rng = random.Random(0)
    tok = clip_tokenizer(out)
    n = len(tok)
    cfg = CLIPConfig(
        text_config={
            "vocab_size": n,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 32,
            "bos_token_id": tok.bos_token_id,
            "eos_token_id": tok.eos_token_id,
            "pad_token_id": tok.pad_token_id,
            "projection_dim": 64,
        },
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": SIZE,
            "patch_size": 8,
            "projection_dim": 64,
        },
        projection_dim=64,
    )
    m = CLIPModel(cfg)
    ip = CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE})
    proc = CLIPProcessor(ip, tok)
    if train:
        classes = [(c, s) for c in COLORS for s in SHAPES]
        opt = torch.optim.AdamW(m.parameters(), 1e-3, weight_decay=0.01)
        t0 = time.time()
        m.train()
        sch = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, steps)
        for i in range(steps):
            k = rng.sample(classes, 32)
            im = [draw(c, s, rng) for c, s in k]
            tx = [rng.choice(TEMPL).format(c=c, s=s) for c, s in k]  # 32 distinct classes per batch: no false negatives
            b = tok(tx, return_tensors="pt", padding=True)
            o = m(**b, pixel_values=pix(im), return_loss=True)
            opt.zero_grad()
            o.loss.backward()
            opt.step()
            sch.step()
            with torch.no_grad():
                m.logit_scale.clamp_(0, 4.6052)
            if i % 100 == 0:
                print("clip", i, round(o.loss.item(), 3), round(time.time() - t0, 1), flush=True)
    m.eval().save_pretrained(out)
    proc.save_pretrained(out)
    return m, proc


def make_blip(out, train, steps=1500, bs=32):
    torch.manual_seed(0)
    rng = random.Random(1)
    Path(out).mkdir(parents=True, exist_ok=True)
    words = sorted({w for t in corpus() for w in t.split()})
    chars = list("abcdefghijklmnopqrstuvwxyz0123456789.,!?'-")
    vocab = (
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        + words
        + [c for c in chars if c not in words]
        + ["##" + c for c in chars]
    )
    Path(out, "vocab.txt").write_text("\n".join(vocab) + "\n")
    tok = BertTokenizer(vocab={w: i for i, w in enumerate(vocab)}, do_lower_case=True, model_max_length=64)
    proc = BlipProcessor(BlipImageProcessor(size={"height": SIZE, "width": SIZE}), tok)
    n = len(proc.tokenizer)
    ids = proc.tokenizer.convert_tokens_to_ids
    cfg = BlipConfig(
        text_config={
            "vocab_size": n,
            "hidden_size": 64,
            "encoder_hidden_size": 64,
            "intermediate_size": 128,
            "projection_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 64,
            "bos_token_id": ids("[CLS]"),
            "eos_token_id": ids("[SEP]"),
            "pad_token_id": 0,
            "sep_token_id": ids("[SEP]"),
        },
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "projection_dim": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": SIZE,
            "patch_size": 8,
            "initializer_range": 0.02,
        },  # the default, 1e-10, makes training from scratch crawl
        projection_dim=64,
        image_text_hidden_size=64,
    )
    m = BlipForConditionalGeneration(cfg)
    # two throw-away heads on the vision tower give it a direct signal; captions alone learn shape slowly
    if train:
        hc, hs = torch.nn.Linear(64, len(COLORS)), torch.nn.Linear(64, len(SHAPES))
        C, CE = list(COLORS), torch.nn.functional.cross_entropy
        opt = torch.optim.AdamW([*m.parameters(), *hc.parameters(), *hs.parameters()], 1e-3, weight_decay=0.01)
        sch = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, steps)
        t0 = time.time()
        m.train()
        for i in range(steps):
            k = [(rng.choice(C), rng.choice(SHAPES)) for _ in range(bs)]
            im = [draw(c, s, rng) for c, s in k]
            tx = [f"a photo of a {c} {s}" for c, s in k]
            b = proc.tokenizer(tx, return_tensors="pt", padding=True)
            lab = b["input_ids"].clone()
            lab[b["attention_mask"] == 0] = -100
            o = m(pixel_values=pix(im), input_ids=b["input_ids"], attention_mask=b["attention_mask"], labels=lab)
            f = o.last_hidden_state.mean(1)
            loss = (
                o.loss
                + CE(hc(f), torch.tensor([C.index(c) for c, _ in k]))
                + CE(hs(f), torch.tensor([SHAPES.index(s) for _, s in k]))
            )
            opt.zero_grad()
            loss.backward()
            opt.step()
            sch.step()
            if i % 100 == 0:
                print("blip", i, round(o.loss.item(), 3), round(time.time() - t0, 1), flush=True)
    m.eval().save_pretrained(out)
    proc.save_pretrained(out)
    return m, proc


if __name__ == "__main__":
    torch.set_num_threads(1)
    out, train = sys.argv[1], "--train" in sys.argv
    what = [a[7:] for a in sys.argv if a.startswith("--only=")] or ["clip", "blip"]
    if "clip" in what:
        make_clip(out + "/tiny-clip", train)
    if "blip" in what:
        make_blip(out + "/tiny-blip", train)
