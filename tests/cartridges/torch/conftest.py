"""Owns the tiny models that the tests of this cartridge run on, made here."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cartdeck import Engine, Settings
from cartdeck_modelkit.dialogue.messages import Dialogue, read_dialogue
from cartdeck_modelkit.dialogue.tools import ToolUse
from cartdeck_modelkit.image import decode_image
from cartdeck_modelkit.sampling import SamplingSettings
from cartdeck_torch.family import GRID_EYES
from cartdeck_torch.folder import read_folder
from cartdeck_torch.generation import Generation, Question
from cartdeck_torch.job import Job
from cartdeck_torch.settings import LoadSettings

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


TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
SEEING_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}<assistant>"
)
SAMPLING: dict[str, Any] = {
    "max_tokens": 12,
    "temperature": 0.0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "seed": 1,
}

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
SHARED = {"shared_expert_intermediate_size": 32}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen3": {},
    "qwen3_moe": MOE,
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": {**MOE, **LINEAR, **SHARED},
    "qwen3_next": {**MOE, **LINEAR, **SHARED},
}


WITH_TOWER = ("qwen3_5", "qwen3_5_moe")
"""Kinds whose files hold a tower for images beside the text's model, which is used without it."""
TOWER = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32}
TOWER |= {"patch_size": 4, "num_position_embeddings": 16}


def write_byte_tokenizer(folder: Path, more: tuple[str, ...] = ()) -> int:
    """A token for each byte, one for the beginning and one for the end, and `more` marks."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in set(seen)]
    letters = {**{byte: chr(byte) for byte in seen}, **{byte: chr(256 + index) for index, byte in enumerate(hidden)}}
    vocabulary = {letters[byte]: byte for byte in range(256)}
    marks = [
        {"id": 256 + index, "content": mark, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for index, mark in enumerate(("<s>", "</s>", *more))
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    record: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": marks}
    record |= {"normalizer": None, "pre_tokenizer": level, "post_processor": level, "decoder": level}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    record["model"] = {**model, "end_of_word_suffix": None, "fuse_unk": False, "vocab": vocabulary, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps(record), "utf-8")
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return 258 + len(more)


@pytest.fixture(scope="session")
def make_causal(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a small random language model: `make_causal("qwen3_moe")`."""
    import torch
    import transformers

    made: dict[str, Path] = {}

    def make(kind: str = "llama", **changes: Any) -> Path:
        key = f"{kind}{changes}"
        if key not in made:
            torch.set_num_threads(1)
            torch.manual_seed(0)
            folder = tmp_path_factory.mktemp("causal") / f"tiny-{kind}"
            folder.mkdir()
            sizes: dict[str, Any] = {"vocab_size": write_byte_tokenizer(folder), "hidden_size": 32, "head_dim": 16}
            sizes |= {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
            sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.3}
            sizes |= {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": None, "tie_word_embeddings": False}
            if kind in WITH_TOWER:
                text = {**sizes, **KINDS[f"{kind}_text"]}
                config = transformers.AutoConfig.for_model(kind, text_config=text, vision_config=TOWER)
                transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
            else:
                config = transformers.AutoConfig.for_model(kind, **{**sizes, **KINDS[kind], **changes})
                transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            made[key] = folder
        return made[key]

    return make


@pytest.fixture(scope="session")
def make_seeing(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes a small random language model that sees: `make_seeing("llava")`."""
    import torch
    import transformers

    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    tower |= {"image_size": 32, "patch_size": 8}
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text |= {"num_key_value_heads": 2, "max_position_embeddings": 2048, "bos_token_id": 256, "eos_token_id": 257}
    text |= {"initializer_range": 0.3, "pad_token_id": None, "tie_word_embeddings": False}
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind in made:
            return made[kind]
        torch.set_num_threads(1)
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp("seeing") / f"tiny-{kind}"
        folder.mkdir()
        places = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
        around = ["<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *places]
        size = write_byte_tokenizer(folder, more=("<image>", *(around if kind == "idefics3" else [])))
        if kind in GRID_EYES:
            made[kind] = write_grid_model(folder, kind, {**text, "vocab_size": size})
            return folder
        language = transformers.LlamaConfig(vocab_size=size, **text)
        marks = {"bos_token": "<s>", "eos_token": "</s>"}
        if kind == "llava":
            eyes = transformers.CLIPVisionConfig(**tower, projection_dim=32)
            config = transformers.LlavaConfig(text_config=language, vision_config=eyes, image_token_id=258)
            model = transformers.LlavaForConditionalGeneration(config)
            scale = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
            marks["extra_special_tokens"] = {"image_token": "<image>"}  # type: ignore[assignment]
            named = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
            parts = (transformers.LlavaProcessor, transformers.CLIPImageProcessorPil(**scale), named)
        else:
            config = transformers.Idefics3Config(
                text_config=language, vision_config=tower, image_token_id=258, scale_factor=2
            )
            model = transformers.Idefics3ForConditionalGeneration(config)
            reader = transformers.Idefics3ImageProcessorPil(
                size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
            )
            parts = (transformers.Idefics3Processor, reader, {"image_seq_len": 4})
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **marks)
        model.save_pretrained(folder)
        parts[0](image_processor=parts[1], tokenizer=tokenizer, **parts[2]).save_pretrained(folder)
        (folder / "chat_template.jinja").write_text(SEEING_TEMPLATE, "utf-8")
        made[kind] = folder
        return folder

    return make


def write_grid_model(folder: Path, kind: str, text: dict[str, Any]) -> Path:
    """One of Qwen's models that see, without a processor of transformers: that wants torchvision."""
    import transformers

    tower: dict[str, Any] = {**TOWER, "depth": 2, "spatial_merge_size": 2}
    if kind in WITH_TOWER:
        text |= {**KINDS[f"{kind}_text"], "head_dim": 16}
    elif kind == "qwen3_vl":
        text |= {"head_dim": 16}
        tower |= {"deepstack_visual_indexes": [0]}
    else:
        text |= {"rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2], "rope_theta": 10000.0}}
        tower |= {"fullatt_block_indexes": [1], "window_size": 16} if kind == "qwen2_5_vl" else {"embed_dim": 32}
    config = transformers.AutoConfig.for_model(
        kind, text_config=text, vision_config=tower, image_token_id=258, tie_word_embeddings=False
    )
    transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 16 * 16, "longest_edge": 32 * 32}, "patch_size": 4, "merge_size": 2}
    transformers.Qwen2VLImageProcessorPil(**sizes).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(SEEING_TEMPLATE, "utf-8")
    return folder


@pytest.fixture(scope="session")
def open_generator() -> Callable[..., Any]:
    """Opens a language model on the CPU, in this process."""

    def open_it(path: Path, *, ranks: Any = None, **settings: Any) -> Any:
        from cartdeck_torch.engine.models import open_model
        from cartdeck_torch.engine.torch_device import open_device

        device = open_device("cpu", threads=1)
        folder, own = read_folder(path), LoadSettings(threads=1, **settings)
        return open_model(folder, own, device, report=lambda _: None, ranks=ranks)

    return open_it


@pytest.fixture(scope="session")
def make_answer() -> Callable[..., Any]:
    """Has an open model make texts: the first one, the events beside it, and the counts.

    `messages` make it a dialogue, with `images`, `tools` and `template`; other names are settings.
    """

    def make(model: Any, prompt: str = "hello", *, messages: Any = None, **changes: Any) -> Any:
        named = {name: changes.pop(name, None) for name in ("images", "tools", "tool_choice", "template")}
        settings = SamplingSettings(**{**SAMPLING, **changes})
        question = None
        if messages is not None:
            dialogue = read_dialogue({"messages": messages}) if messages else Dialogue([])
            use = ToolUse.read(named["tools"], named["tool_choice"])
            question = Question(dialogue, use, named["template"], [decode_image(one) for one in dialogue.images])
        generation = Generation(prompt, settings.max_tokens, settings=settings, question=question)

        async def run() -> tuple[str, list[Any]]:
            job = Job()
            model.generate(generation, job)
            job.outcome.set_result(None)
            job.touch()
            async with asyncio.timeout(LIMIT_S):
                text = "".join([piece async for piece in job.pieces()])
            return text, job.take()

        text, events = asyncio.run(run())
        return text, events, generation

    return make


@pytest.fixture(scope="session")
def make_text(make_answer: Callable[..., Any]) -> Callable[..., Any]:
    """As `make_answer`: the first text and the counts."""

    def make(model: Any, prompt: str = "hello", **changes: Any) -> Any:
        text, _, generation = make_answer(model, prompt, **changes)
        return text, generation

    return make
