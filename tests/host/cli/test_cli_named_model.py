"""A name of the catalog stands for a cartridge, a source and settings also where no server runs."""

from pathlib import Path

import pytest

from cartdeck.cli.named_model import meant
from cartdeck_protocol.errors import CartdeckError, Code

TEXT = """
[models.small]
source = "./small.gguf"
aliases = ["s"]
backend = "gguf"
max_tokens = 64
context_size = 512
arguments = { temperature = 0.2, system = "Be brief." }
lora = { pirate = { source = "./pirate.gguf", scale = 0.5 } }
profiles = [
    { name = "quick", threads = 4, priority = 2 }, { name = "frugal", threads = 1, context_size = 256 },
    { name = "many", device = "cuda", tensor_parallel = 64 },
]
[models.seeing]
source = "./seeing.gguf"
projector = "./eyes.gguf"
capabilities = ["chat", "vision"]
[models.vectors]
source = "./vectors.gguf"
capabilities = ["embeddings"]
arguments = { normalize = false }
[models.fetched]
source = "hf:owner/name:m.gguf"
projector = "hf:owner/eyes:mmproj.gguf"
capabilities = ["chat", "vision"]
[models.away]
external = { url = "http://127.0.0.1:9/v1" }
[models.guarded]
source = "./guarded.gguf"
guards = ["watch"]
[guards.watch]
source = "./watch.gguf"
format = "qwen3guard"
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "catalog.toml"
    path.write_text(TEXT)
    return path


def test_a_name_or_an_alias_brings_the_cartridge_the_source_and_the_defaults_that_the_cap_knows(catalog: Path) -> None:
    found = meant("cap:chat", {"model": "s", "seed": "3"}, catalog)
    assert found.cap == "cap:chat;gguf"
    assert found.arguments == {
        "model": "./small.gguf", "temperature": 0.2, "system": "Be brief.", "max-tokens": 64, "context-size": 512,
        "threads": 4, "seed": "3",
    }  # fmt: skip
    assert "system" not in meant("cap:generate-text", {"model": "small"}, catalog).arguments
    assert meant("cap:embed-text", {"model": "vectors"}, catalog).arguments["normalize"] is False
    seeing = meant("cap:describe-image", {"model": "seeing"}, catalog)
    assert (seeing.cap, seeing.arguments) == (
        "cap:describe-image", {"model": "./seeing.gguf", "projector": "./eyes.gguf"},
    )  # fmt: skip


def test_what_is_given_wins_but_for_the_limit_of_tokens(catalog: Path) -> None:
    given = {"model": "small", "temperature": "1", "max-tokens": "500"}
    assert meant("cap:chat", given, catalog).arguments["temperature"] == "1"
    assert meant("cap:chat", given, catalog).arguments["max-tokens"] == 64
    assert meant("cap:chat", {**given, "max-tokens": "5"}, catalog).arguments["max-tokens"] == "5"


def test_a_profile_that_is_named_is_taken_in_place_of_the_best(catalog: Path) -> None:
    found = meant("cap:chat", {"model": "pirate"}, catalog, profile="frugal").arguments
    assert (found["threads"], found["context-size"], found["lora"][0]["scale"]) == (1, 256, 0.5)
    for name, profile, said in (
        ("small", "quik", "no profile 'quik'; it has quick, frugal, many"),
        ("vectors", "quick", "it has none"),
        ("small", "many", "does not fit this machine: it needs 64 CUDA devices"),
        ("./small.gguf", "quick", "--profile is for a name of a catalog, and ./small.gguf is none"),
    ):
        with pytest.raises(CartdeckError, match=said) as caught:
            meant("cap:chat" if name != "vectors" else "cap:embed-text", {"model": name}, catalog, profile=profile)
        assert caught.value.code is Code.BAD_ARGUMENT
    with pytest.raises(CartdeckError, match="--model"):
        meant("cap:chat", {}, None, profile="quick")


def test_an_adapter_has_a_name_of_its_own(catalog: Path) -> None:
    arguments = meant("cap:generate-text", {"model": "pirate"}, catalog).arguments
    assert (arguments["model"], arguments["lora"]) == ("./small.gguf", [{"model": "./pirate.gguf", "scale": 0.5}])


def test_what_is_fetched_is_to_be_compared_unless_something_else_is_given_in_its_place(catalog: Path) -> None:
    assert [one.argument for one in meant("cap:chat", {"model": "fetched"}, catalog).pins] == ["model", "projector"]
    found = meant("cap:chat", {"model": "fetched", "projector": "./mine.gguf"}, catalog)
    assert ([one.argument for one in found.pins], found.arguments["projector"]) == (["model"], "./mine.gguf")
    assert not meant("cap:chat", {"model": "small"}, catalog).pins


@pytest.mark.parametrize(
    ("cap", "name", "code", "message"),
    [
        ("cap:chat", "smal", Code.MODEL_NOT_FOUND, r"no model 'smal'\. Near it: small"),
        ("cap:embed-text", "small", Code.UNSUPPORTED, "none for embed-text; it can be asked for: chat, completion"),
        ("cap:describe-image", "small", Code.UNSUPPORTED, "does not see; the catalog has it for: chat, completion"),
        ("cap:chat", "away", Code.UNSUPPORTED, "Another server answers for away; `cartdeck serve` asks it"),
        ("cap:chat", "guarded", Code.UNSUPPORTED, "is guarded by watch: `cartdeck serve` asks guards"),
    ],
)
def test_a_name_that_cannot_be_called_is_refused_with_the_reason(
    catalog: Path, cap: str, name: str, code: Code, message: str
) -> None:
    with pytest.raises(CartdeckError, match=message) as caught:
        meant(cap, {"model": name}, catalog)
    assert caught.value.code is code


def test_specs_and_files_stay_what_they_are(catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.gguf").touch()
    for spec in ("./small", "hf:owner/name", "owner/name", "act:tokens=1", "~/m.gguf", "mine.gguf", "x/y.gguf"):
        assert meant("cap:chat", {"model": spec}, catalog).arguments == {"model": spec}
    assert meant("cap:chat", {}, None).arguments == {}


def test_without_a_catalog_nothing_is_a_name_and_one_that_is_asked_for_must_be_there(
    catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
    monkeypatch.delenv("CARTDECK_CATALOG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert meant("cap:chat", {"model": "small"}, None).arguments == {"model": "small"}
    monkeypatch.setenv("CARTDECK_CATALOG", str(catalog))
    assert meant("cap:chat", {"model": "small"}, None).arguments["model"] == "./small.gguf"
    with pytest.raises(CartdeckError) as caught:
        meant("cap:chat", {"model": "small"}, tmp_path / "none.toml")
    assert caught.value.code is Code.FILE_NOT_FOUND
    with pytest.raises(CartdeckError, match="give one of them with --model") as caught:
        meant("cap:chat", {}, catalog)
    assert caught.value.code is Code.MISSING_ARGUMENT
