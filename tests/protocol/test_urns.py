"""URNs: canonical text, interning, set inclusion, ranking, and what is refused where."""

import copy
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cartdeck_protocol.caps import CapUrn, MediaUrn, UrnError, closeness, rank
from cartdeck_protocol.caps.intern import LONGEST_TEXT, InternTable
from cartdeck_protocol.caps.tag import Form, Tag

KEYS = st.sampled_from(["a", "b", "c", "B", "x-1", "éa"])
BARE_VALUES = st.sampled_from(["v", "w", "W", "1", "?v", "a/b", "é"])
QUOTED_VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1).filter(
    lambda text: not any("\x7f" <= character < "\xa0" for character in text)
)


def quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@st.composite
def tags(draw: st.DrawFn) -> str:
    key = draw(KEYS)
    value = draw(BARE_VALUES | QUOTED_VALUES.map(quote))
    sigils = ('"?"', '"!"', '"*"')
    forms = [f"{key}", f"?{key}", f"!{key}", f"{key}?", f"{key}=*", f"{key}={value}"]
    if value not in sigils:
        forms += [f"{key}!={value}", f"{key}?={value}", f"!{key}={value}"]
    return draw(st.sampled_from(forms))


def no_key_twice(written: list[str]) -> list[str]:
    kept: dict[str, str] = {}
    for tag in written:
        kept.setdefault(next(iter(MediaUrn.parse(f"media:{tag}").tags)), tag)
    return list(kept.values())


TAG_LISTS = st.lists(tags(), max_size=4).map(no_key_twice)
MEDIA_TEXTS = TAG_LISTS.map(lambda written: "media:" + ";".join(written))
MEDIA = MEDIA_TEXTS.map(MediaUrn.parse)


@st.composite
def caps(draw: st.DrawFn) -> CapUrn:
    sides = [f"{key}={quote(str(draw(MEDIA)))}" for key in ("in", "out") if draw(st.booleans())]
    effect = draw(st.sampled_from([[], [], ["effect=patch"], ["?effect"]]))
    return CapUrn.parse("cap:" + ";".join(["op", *draw(TAG_LISTS), *sides, *effect]))


# URNs so alike that many of them are comparable.
CLOSE_TAGS = st.sampled_from(["a", "?a", "!a", "a=v", "a=w", "a!=v", "a?=v"])
CLOSE_MEDIA = st.lists(CLOSE_TAGS, max_size=1).map(lambda written: MediaUrn.parse("media:" + ";".join(written)))
CLOSE_CAPS = st.tuples(CLOSE_TAGS, CLOSE_MEDIA, CLOSE_MEDIA, st.sampled_from(["effect=patch", "?effect", ""])).map(
    lambda parts: CapUrn.parse(f"cap:op;{parts[0]};in={quote(str(parts[1]))};out={quote(str(parts[2]))};{parts[3]}")
)


@given(MEDIA_TEXTS)
def test_canonical_media_text_is_a_fixed_point_of_parse(text: str) -> None:
    urn = MediaUrn.parse(text)
    assert str(MediaUrn.parse(str(urn))) == str(urn)
    assert MediaUrn.parse(str(urn)) == urn
    assert MediaUrn.parse(text) is MediaUrn.parse(text) or len(text) > LONGEST_TEXT


@given(caps())
def test_canonical_cap_text_is_a_fixed_point_of_parse(urn: CapUrn) -> None:
    again = CapUrn.parse(str(urn))
    assert again == urn
    assert (again.input, again.output, again.effect, again.tags) == (urn.input, urn.output, urn.effect, urn.tags)


@given(TAG_LISTS.flatmap(lambda written: st.tuples(st.just(written), st.permutations(written))))
def test_the_order_of_tags_does_not_matter(both: tuple[list[str], list[str]]) -> None:
    first, second = (MediaUrn.parse("media:" + ";".join(written)) for written in both)
    assert first == second
    assert hash(first) == hash(second)


@given(MEDIA)
def test_media_conformance_is_reflexive(urn: MediaUrn) -> None:
    assert urn.conforms_to(urn)
    assert urn.conforms_to(MediaUrn.parse("media:"))


@settings(max_examples=300)
@given(CLOSE_MEDIA, CLOSE_MEDIA, CLOSE_MEDIA)
def test_media_conformance_is_transitive(a: MediaUrn, b: MediaUrn, c: MediaUrn) -> None:
    if a.conforms_to(b) and b.conforms_to(c):
        assert a.conforms_to(c)
    assert a.is_equivalent(b) == b.is_equivalent(a)
    assert a.is_comparable(b) == b.is_comparable(a)


@given(CLOSE_CAPS, CLOSE_CAPS, CLOSE_CAPS)
def test_cap_conformance_is_an_order_and_implies_service(a: CapUrn, b: CapUrn, c: CapUrn) -> None:
    assert a.conforms_to(a)
    if a.conforms_to(b) and b.conforms_to(c):
        assert a.conforms_to(c)
    if a.conforms_to(b):
        assert a.serves(b)


TAGS = st.builds(Tag, st.sampled_from([Form.EXACT, Form.OTHER, Form.ABSENT_OR_OTHER]), st.sampled_from("vw")) | (
    st.sampled_from([Tag(Form.ANY), Tag(Form.PRESENT), Tag(Form.ABSENT)])
)
EVERY_STATE = frozenset({None, "v", "w", "another"})


def states(tag: Tag) -> frozenset[str | None]:
    """What a key may be, spelled out: None is absent, `another` stands for all further values."""
    present = EVERY_STATE - {None}
    match tag.form:
        case Form.ANY:
            return EVERY_STATE
        case Form.PRESENT:
            return present
        case Form.ABSENT:
            return frozenset({None})
        case Form.EXACT:
            return frozenset({tag.value})
        case Form.OTHER:
            return present - {tag.value}
        case Form.ABSENT_OR_OTHER:
            return EVERY_STATE - {tag.value}


@given(TAGS, TAGS)
def test_a_tag_includes_another_where_its_set_does(wide: Tag, narrow: Tag) -> None:
    assert wide.includes(narrow) is (states(narrow) <= states(wide))


def parsed_or_error(parse: Callable[[str], MediaUrn | CapUrn], text: str) -> MediaUrn | CapUrn | UrnError:
    try:
        return parse(text)
    except UrnError as error:
        return error


@given(st.text(max_size=20) | st.text('aAb1=;!?*"\\ :-\t', max_size=9))
def test_any_text_is_parsed_or_refused_with_a_position(text: str) -> None:
    for written in (text, f"media:{text}", f"cap:{text}"):
        for parse in (MediaUrn.parse, CapUrn.parse):
            urn = parsed_or_error(parse, written)
            if isinstance(urn, UrnError):
                assert 0 <= urn.position <= len(written)
                assert urn.text == written


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("medium:a", 0, "starts with 'media'"),
        ("media:a b", 7, "expected ';' or the end"),
        ("media:a;a=v", 8, "twice"),
        ("media:a=b=c", 9, "quotes"),
        ('media:a="b', 8, "closing quote"),
        ('media:a="b\nc"', 10, "control character"),
        ('media:a="\\n"', 10, "escape"),
        ("media:?a?", 8, "before and after"),
        ("media:?a=*", 9, "do not go together"),
        ("media:void;a", 11, "media:void is nothing"),
        ("media:42", 6, "only a number"),
    ],
)
def test_a_refused_media_urn_says_what_is_wrong_where(text: str, position: int, words: str) -> None:
    with pytest.raises(UrnError, match=words) as caught:
        MediaUrn.parse(text)
    assert caught.value.position == position
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.text, again.position) == (str(caught.value), text, position)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cap:", "say something"),
        ("cap:?in;x", "'in' takes one media URN"),
        ("cap:in=text;x", "'in' takes a media URN"),
        ("cap:effect=maybe;x", "'effect' is one of"),
        ('cap:effect=none;in="media:a";out="media:b"', "gives back its input"),
    ],
)
def test_a_refused_cap_urn_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(UrnError, match=words):
        CapUrn.parse(text)


def test_parsing_twice_gives_one_object() -> None:
    first = CapUrn.parse('cap:generate-text;in="media:enc=utf-8;prompt"')
    assert CapUrn.parse('cap:IN="media:prompt;enc=utf-8";generate-text') is first
    assert CapUrn.parse(str(first)) is first


def test_a_urn_is_the_same_after_pickle_and_copy() -> None:
    for urn in (MediaUrn.parse("media:enc=utf-8"), CapUrn.parse("cap:generate-text;gguf")):
        assert pickle.loads(pickle.dumps(urn)) is urn
        assert copy.deepcopy(urn) is urn


def test_a_media_urn_never_equals_a_text_or_a_cap() -> None:
    assert MediaUrn.parse("media:a") != "media:a"
    assert MediaUrn.parse("media:a") != CapUrn.parse("cap:a")


def test_the_table_of_parsed_urns_stays_bounded() -> None:
    table: InternTable[str] = InternTable(capacity=10)
    for number in range(100):
        assert table.keep(f"b;a{number}", f"value {number}", canonical=f"a{number};b") == f"value {number}"
        assert len(table.known) <= 10
    table.keep("x" * (LONGEST_TEXT + 1), "long", canonical="x")
    assert "x" not in table.known


def test_tags_can_be_added_to_a_cap() -> None:
    cap = CapUrn.parse('cap:chat;out="media:enc=utf-8"')
    assert str(cap.with_tags("torch", "language=EN")) == 'cap:chat;language=en;out="media:enc=utf-8";torch'
    assert cap.with_tags() is cap
    assert cap.with_tags("chat") is cap


@pytest.mark.parametrize("tag", ["in=media:a", "effect=none", "!chat", "chat=v", "two words", "="])
def test_a_tag_that_contradicts_a_cap_is_refused(tag: str) -> None:
    with pytest.raises(UrnError):
        CapUrn.parse("cap:chat").with_tags(tag)


def test_ranking_puts_the_closest_at_or_above_the_request_first_then_the_closest_below() -> None:
    request = CapUrn.parse('cap:extract;in="media:ext=pdf";out=media:')
    names = {
        "exact": 'cap:extract;in="media:ext=pdf"',
        "nearer": 'cap:extract;fast;in="media:ext=pdf"',
        "further": 'cap:extract;fast=very;in="media:ext=pdf"',
        "below": "cap:extract;in=media:ext",
        "lowest": "cap:extract",
        "other": 'cap:extract;in="media:ext=png"',
    }
    urns = {name: CapUrn.parse(text) for name, text in names.items()}
    ranked = rank([urns[name] for name in ("lowest", "further", "other", "below", "nearer", "exact")], request)
    assert ranked == [urns[name] for name in ("exact", "nearer", "further", "below", "lowest")]


@given(st.lists(CLOSE_CAPS, max_size=6), CLOSE_CAPS)
def test_ranking_keeps_exactly_those_that_serve_and_ties_keep_their_order(found: list[CapUrn], asked: CapUrn) -> None:
    ranked = rank(found, asked)
    assert sorted(map(str, ranked)) == sorted(str(cap) for cap in found if cap.serves(asked))
    keys = [closeness(cap, asked) for cap in ranked]
    assert keys == sorted(keys)
    tied = [cap for cap in found if cap.serves(asked) and closeness(cap, asked) == (keys or [(0, 0)])[0]]
    assert ranked[: len(tied)] == tied
