"""Guards in a catalog: what they may say, what must hold between them and the models, and where a fault is."""

import json
import re
from typing import Any

import pytest

from cartdeck import CartdeckError, Code
from cartdeck.catalog.catalog import Catalog, parse_catalog
from cartdeck.catalog.changes import What, changes
from cartdeck.catalog.choosing import Machine
from cartdeck.catalog.guard import Guard, GuardFormat, template_keys

MODEL = '[models.m]\nsource = "x/y"\n'
GUARD = '[guards.g]\nsource = "x/g"\nformat = "llamaguard3"\n'
USED = MODEL + 'guards = ["g"]\n' + GUARD


def parse(text: str) -> Catalog:
    return parse_catalog(text, origin="models.toml")


def test_a_guard_has_defaults_that_keep_what_it_guards() -> None:
    catalog = parse(USED)
    guard = catalog.guards["g"]
    assert catalog.entries["m"].guards == ("g",)
    assert (guard.format, guard.when, guard.action, guard.when_down) == (
        GuardFormat.LLAMAGUARD3, ("before", "after"), "refuse", "refuse",
    )  # fmt: skip
    named = catalog.guard_model("g")
    assert (named.name, named.entry.source) == ("g", "x/g")
    assert [one.name for one in catalog.visible()] == ["m"]


def test_a_model_of_the_catalog_that_is_a_guard_is_hidden_with_all_its_names() -> None:
    text = USED + '[guards.h]\nmodel = "w"\nformat = "qwen3guard"\n[models.w]\nsource = "x/w"\naliases = ["v"]\n'
    catalog = parse(text + 'lora = {u = {source = "x/u"}}\n')
    assert catalog.guard_model("h").entry is catalog.entries["w"]
    assert [one.name for one in catalog.visible()] == ["m"]
    assert catalog.is_hidden(catalog.find("v"))
    assert catalog.is_hidden(catalog.find("u"))
    with pytest.raises(CartdeckError, match=r"It has: m\.$"):
        catalog.find("ww")


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (MODEL + 'guards = ["h"]\n' + GUARD, "models.m.guards", r"there is no guard h .*\[guards.NAME\]"),
        (MODEL + 'guards = ["guard"]\n[guards.guards]\nsource="x/g"\nformat="llamaguard3"', "models.m.guards",
         "near it: guards"),
        (MODEL + 'guards = ["g", "g"]\n' + GUARD, "models.m.guards", "g is there twice"),
        (MODEL + 'capabilities = ["embeddings"]\nguards = ["g"]\n' + GUARD, "models.m.guards", "for embeddings too"),
        ("[guards.m]\nsource='x/g'\nformat='llamaguard3'\n" + MODEL, "guards.m", "the name m is taken by models.m"),
        (MODEL + "[guards.g]\nmodel='n'\nformat='llamaguard3'", "guards.g.model", "there is no model n"),
        (MODEL + "guards = ['g']\n[guards.g]\nmodel='m'\nformat='llamaguard3'", "guards.g.model", "guard itself"),
        (
            "[models.m]\nsource='x/y'\nguards=['g']\n[models.w]\nsource='x/w'\nguards=['h']\n" + GUARD
            + "[guards.h]\nmodel='m'\nformat='llamaguard3'",
            "guards.h.model", "m is guarded by g; a guard's model is not guarded itself",
        ),
        (
            MODEL + "capabilities=['embeddings']\n[guards.g]\nmodel='m'\nformat='llamaguard3'",
            "guards.g.model", "m is not for chat",
        ),
        (
            "[models.m]\nexternal={url='http://a/v1'}\n[guards.g]\nmodel='m'\nformat='llamaguard3'",
            "guards.g.model", "another server",
        ),
        (
            MODEL + "fallback=['w']\n[models.w]\nsource='x/w'\n[guards.g]\nmodel='w'\nformat='llamaguard3'",
            "models.m.fallback", "w is the guard g's model, which clients do not see",
        ),
        (GUARD + "arguments={temperatur=1}", "guards.g.arguments.temperatur", "near it: temperature"),
        (GUARD.replace("llamaguard3", "llamaguard9"), "guards.g.format", "'llamaguard3'"),
        (GUARD + "colour=1", "guards.g.colour", "no key that is known"),
        (GUARD + "prompt='Is {question} fine?'", "guards.g.prompt", "{question} is no key.*{prompt}, {answer}"),
        (GUARD + "prompt='Is {prompt.text} fine?'", "guards.g.prompt", "no key"),
        (GUARD + "prompt='Is {prompt!r} fine?'", "guards.g.prompt", "no key"),
        (GUARD + "prompt='Is {} fine?'", "guards.g.prompt", "no key"),
        (GUARD + "prompt='Is { fine?'", "guards.g.prompt", "written twice"),
        (GUARD + "prompt='Is it fine?'", "guards.g.prompt", "the same of every request"),
        (GUARD + "prompt='Is {role} fine?'", "guards.g", "neither {prompt} nor {dialogue}"),
        (GUARD + "prompt='Is {prompt} fine?'", "guards.g", "asked after a request it shows neither {answer} nor"),
        (GUARD + "answer_prompt='Is {answer} fine?'", "guards.g", "for a guard that has a prompt"),
        (GUARD + "ask='completion'", "guards.g", "prompt is missing: a guard that is asked to continue a text"),
        (GUARD.replace("llamaguard3", "json"), "guards.g", "is missing: a guard that is asked of the format json"),
        (GUARD + "model='m'\n" + MODEL, "guards.g", "not both"),
        ("[guards.g]\nformat='llamaguard3'", "guards.g", "not neither"),
        (MODEL + "[guards.g]\nmodel='m'\nformat='llamaguard3'\ncontext_size=5", "guards.g", "context_size: said by"),
        (GUARD + "threshold=0.4", "guards.g", "threshold is for the format shieldgemma"),
        (GUARD + "when=['before','before']", "guards.g", "twice"),
        (GUARD + "when=[]", "guards.g.when", "at least 1"),
        (GUARD + "timeout_s=0", "guards.g.timeout_s", "greater"),
        (MODEL + "class='high'", "models.m.class", "'critical'"),
        (MODEL + "importance='critical'", "models.m.importance", "no key that is known"),
    ],
)  # fmt: skip
def test_what_would_fail_later_fails_at_load_with_the_keys_path(text: str, path: str, message: str) -> None:
    with pytest.raises(CartdeckError) as caught:
        parse(text)
    assert caught.value.code is Code.BAD_ARGUMENT
    found = {one["path"]: one["message"] for one in caught.value.details["problems"]}
    assert list(found) == [path], found
    assert re.search(message, found[path]), found


def test_guards_that_come_back_to_themselves_are_told_with_the_way() -> None:
    text = "".join(
        f"[models.{name}]\nsource='x/{name}'\nguards=['g{other}']\n[guards.g{name}]\nmodel='{name}'\n"
        "format='llamaguard3'\n"
        for name, other in (("a", "b"), ("b", "c"), ("c", "a"))
    )
    with pytest.raises(CartdeckError) as caught:
        parse(text)
    found = {one["path"]: one["message"] for one in caught.value.details["problems"]}
    assert found["guards.ga.model"] == "it comes back to itself: ga → a → gb → b → gc → c → ga"
    assert set(found) == {"guards.ga.model", "guards.gb.model", "guards.gc.model"}


def test_braces_of_the_text_itself_are_written_twice() -> None:
    assert template_keys('Answer {{"safe": true}} of {dialogue} by {role}') == ["dialogue", "role"]
    keys: dict[str, Any] = {"source": "x/y", "format": "json", "prompt": 'Say {{"safe": true}} of {dialogue}'}
    assert Guard.model_validate_json(json.dumps(keys)).prompt is not None


def test_changes_of_guards_are_told_by_name_and_key() -> None:
    machine = Machine(0)
    old, new = parse(USED), parse(USED.replace("[guards.g]", "[guards.g]\naction = 'flag'") + GUARD.replace("g]", "h]"))
    changed, added = changes(old, new, machine)
    assert (changed.what, changed.name, changed.keys, changed.is_guard) == (What.CHANGED, "g", ("action",), True)
    assert str(changed) == "guard g changed (action)"
    assert str(added) == "guard h added"
    [gone, *_] = changes(new, old, machine)[::-1]
    assert str(gone) == "guard h removed"
    [classed] = changes(parse(MODEL), parse(MODEL + "class='critical'\n"), machine)
    assert classed.keys == ("class",)
