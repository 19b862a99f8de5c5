"""Chains of caps between two kinds of data."""

from cartdeck.discovery import Cartridge
from cartdeck.plans.path_search import Chain, find_chains
from cartdeck.router import Router
from cartdeck_protocol.caps import MediaUrn, build_manifest

CAPS = {
    "hear": ('cap:hear;in="media:audio";out="media:enc=utf-8;transcript"', "model", "media:enc=utf-8;model-spec"),
    "embed": ('cap:embed;in="media:enc=utf-8;text";out="media:embedding"', "", ""),
    "sing": ('cap:sing;in="media:enc=utf-8;text";out="media:song"', "", ""),
    "paint": ('cap:paint;in="media:enc=utf-8;text";out="media:image"', "style", "media:style-file"),
}


def definition(alias: str) -> str:
    """A cap with a main argument and, if it says so, one more that is required."""
    urn, further, media = CAPS[alias]
    text = f"urn = '{urn}'\ntitle = 'x'\ndocumentation = 'x'\n[output]\ndocumentation = 'x'\n"
    text += "[arguments.given]\nis_main = true\nrequired = true\ndocumentation = 'x'\n"
    if alias == "sing":
        text += "[arguments.model]\nmedia = 'media:enc=utf-8;model-spec'\ndefault = 'a/b'\ndocumentation = 'x'\n"
    if further:
        text += f"[arguments.{further}]\nmedia = '{media}'\nrequired = true\ndocumentation = 'x'\n"
    return text


def chains(source: str, target: str, *, more: str = "") -> list[Chain]:
    text = 'name = "x"\nversion = "1.0.0"\ntitle = "x"\ndescription = "x"\ncaps = ["hear", "embed", "paint", "sing"]\n'
    manifest = build_manifest(text + more, definition)
    router = Router([Cartridge(manifest, ("nothing",), "x")], ())
    return find_chains(router.routes, MediaUrn.parse(source), MediaUrn.parse(target))


def test_a_chain_says_which_arguments_are_to_be_set() -> None:
    (chain,) = chains("media:audio", "media:embedding")
    assert (chain.names, chain.needs) == (["hear", "embed"], ["hear.model"])
    assert chain.to_plan().to_text().endswith("input -> hear -> value-1\nvalue-1 -> embed -> output\n")


def test_a_model_whose_default_the_cartridge_does_not_take_is_to_be_set() -> None:
    (song,) = chains("media:enc=utf-8;text", "media:song")
    assert song.needs == []
    (song,) = chains("media:enc=utf-8;text", "media:song", more='accepts = ["*.gguf"]\n')
    assert song.needs == ["sing.model"]


def test_a_cap_that_needs_what_no_constant_can_give_is_in_no_chain() -> None:
    assert chains("media:enc=utf-8;text", "media:image") == []
