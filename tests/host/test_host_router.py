"""Routing: closest first, then the model, then the preference; and what is said when nothing fits."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cartdeck.discovery import Cartridge
from cartdeck.router import Route, Router
from cartdeck_protocol.caps import CapUrn, Manifest, Requirement, build_manifest
from cartdeck_protocol.errors import CartdeckError, Code

GENERATE = """
urn = 'cap:generate-text;in="media:enc=utf-8;prompt";out="media:enc=utf-8;generated-text"'
title = "Generate"
documentation = "Text."
[arguments.prompt]
is_main = true
required = true
documentation = "A prompt."
[arguments.model]
media = "media:enc=utf-8;model-spec"
is_instance = true
default = "{model}"
documentation = "A model."
[output]
documentation = "Text."
"""


def make(
    name: str,
    *,
    tags: Sequence[str] = (),
    accepts: Sequence[str] = (),
    model: str = "some/model",
    missing: bool = False,
) -> Cartridge:
    text = (
        f'name = "{name}"\nversion = "1.0.0"\ntitle = "T"\ndescription = "D"\ncaps = ["generate-text"]\n'
        f"tags = {list(tags)!r}\naccepts = {list(accepts)!r}\nholds_instances = true\n"
    )
    manifest: Manifest = build_manifest(
        text, lambda alias: GENERATE.format(model=model) if alias == "generate-text" else None
    )
    needs = (Requirement(module="torch", install="pip install 'cartdeck[torch]'"),) if missing else ()
    return Cartridge(manifest, ("true",), name, False, needs)


GGUF = make("gguf", tags=["gguf"], accepts=["*.gguf*"], model="pypi:small==1/small.gguf")
TORCH = make("torch", tags=["torch"], model="pypi:small==1/small.gguf")


def route(cap: str, *cartridges: Cartridge, prefer: Sequence[str] = (), **arguments: object) -> str:
    found: Route = Router(cartridges, prefer).route_text(cap, {"prompt": "x", **arguments})
    return found.cartridge.name


def test_a_tag_asks_for_its_cartridge() -> None:
    assert route("cap:generate-text;torch", GGUF, TORCH) == "torch"
    assert route("cap:generate-text;gguf", GGUF, TORCH, model="some/model") == "gguf"


def test_an_alias_alone_names_a_cap() -> None:
    assert route("generate-text", GGUF) == "gguf"


def test_the_model_decides_between_equals() -> None:
    assert route("generate-text", TORCH, GGUF, model="hf:owner/name:Q4.gguf") == "gguf"
    assert route("generate-text", TORCH, GGUF, model={"repo_id": "a/b", "filename": "x.gguf"}) == "gguf"
    assert route("generate-text", GGUF, TORCH, model="hf:owner/name") == "torch"
    assert route("generate-text", GGUF, TORCH, model=b"hf:owner/name") == "torch"


def test_without_a_model_the_candidates_own_defaults_decide() -> None:
    assert route("generate-text", TORCH, GGUF) == "gguf"


def test_then_the_preference_decides() -> None:
    other = make("other", tags=["other"])
    assert route("generate-text", TORCH, other, prefer=["other", "torch"], model="a/b") == "other"
    assert route("generate-text", TORCH, other, prefer=["torch"], model="a/b") == "torch"


def test_a_tie_names_both() -> None:
    other = make("other", tags=["other"])
    with pytest.raises(CartdeckError, match="other and torch both serve") as caught:
        route("generate-text", TORCH, other, model="a/b")
    assert caught.value.code is Code.AMBIGUOUS_CAP
    assert caught.value.details == {"candidates": ["other", "torch"]}


def test_the_only_candidate_is_taken_whatever_the_model() -> None:
    assert route("generate-text", GGUF, model="hf:owner/name") == "gguf"


def test_the_closest_specificity_wins() -> None:
    plain = make("plain")
    assert route("generate-text", GGUF, plain, model="x.gguf") == "plain"


def test_an_unknown_cap_names_near_ones() -> None:
    with pytest.raises(CartdeckError, match="Near it: generate-text") as caught:
        route("cap:genrate-text", GGUF)
    assert caught.value.code is Code.NO_SUCH_CAP
    with pytest.raises(CartdeckError, match="No cartridge was found at all"):
        route("cap:generate-text")


def test_an_unknown_cap_tells_of_cartridges_that_could_not_be_read() -> None:
    with pytest.raises(CartdeckError, match="1 cartridge could not be read: `cartdeck cartridges` says why") as caught:
        Router([GGUF], (), unread=["the package mine"]).route_text("cap:mine", {})
    assert caught.value.code is Code.NO_SUCH_CAP
    assert caught.value.details["unread"] == ["the package mine"]


def test_an_unavailable_cartridge_is_never_routed_to_and_names_its_remedy() -> None:
    absent = make("torch", tags=["torch"], missing=True)
    assert route("generate-text", GGUF, absent, model="hf:owner/name") == "gguf"
    with pytest.raises(CartdeckError, match=r"lacks torch \(bring it with: pip install") as caught:
        route("cap:generate-text;torch", GGUF, absent)
    assert caught.value.code is Code.CARTRIDGE_UNAVAILABLE
    assert caught.value.details["install"] == ["pip install 'cartdeck[torch]'"]


def test_a_default_model_of_a_cartridge_that_lacks_its_libraries_is_told_before_it_is_obtained() -> None:
    folder = "pypi:small==1/folder/"
    gguf = make("gguf", tags=["gguf"], accepts=["*.gguf*"], model=folder)
    lacking = make("torch", tags=["torch"], model=folder, missing=True)
    router = Router([gguf, lacking], ())
    chosen = router.route_text("generate-text", {})
    for arguments in ({}, {"model": folder}):
        with pytest.raises(CartdeckError, match=r"one for the cartridge torch, which lacks torch \(bring it") as caught:
            router.check_default("generate-text", chosen, arguments)
        assert caught.value.code is Code.CARTRIDGE_UNAVAILABLE
        assert caught.value.details["install"] == ["pip install 'cartdeck[torch]'"]
    for model in ("small.gguf", "hf:owner/name"):  # what is in that repository only its files say
        router.check_default("generate-text", chosen, {"model": model})
    router.check_default("cap:generate-text;gguf", chosen, {})
    ready = Router([gguf], ())
    ready.check_default("generate-text", ready.route_text("generate-text", {}), {})


def test_a_text_that_is_no_cap_says_where() -> None:
    with pytest.raises(CartdeckError, match="at character") as caught:
        route("cap:generate text", GGUF)
    assert caught.value.code is Code.BAD_ARGUMENT
    assert caught.value.argument == "cap"


def test_a_universal_cap_is_no_question_of_taste() -> None:
    assert route("cap:effect=none", GGUF, TORCH) in ("gguf", "torch")


class _Forgetful(Router):
    """As if another thread, which compiles a plan, emptied what is remembered behind each choice."""

    def route(self, cap: CapUrn, arguments: Mapping[str, Any]) -> Route:
        chosen = super().route(cap, arguments)
        self._serving.clear()
        return chosen


def test_what_is_remembered_may_be_forgotten_meanwhile() -> None:
    router = _Forgetful([GGUF], ())
    for _ in range(2):
        assert router.route_text("generate-text", {}).cartridge.name == "gguf"
