"""Owns the URNs of a plan: what an author wrote becomes canonical text, or a fault at its place.

It does not know steps, nor whether anybody serves the cap.
"""

from cartdeck.plans.fault import Place, plan_fault
from cartdeck.plans.syntax import Word
from cartdeck_protocol.caps import CapUrn, MediaUrn, UrnError

MEDIA = "media:"


def cap_text(urn: Word, place: Place | None) -> str:
    """The canonical cap that a header names: a URN, or an alias alone."""
    text = urn.text if urn.text[:4].lower() == "cap:" else f"cap:{urn.text}"
    try:
        return str(CapUrn.parse(text))
    except UrnError as error:
        raise plan_fault(f"this is no cap: {error}", _inside(urn, text, error, place)) from None


def media_text(urn: Word, place: Place | None) -> str:
    try:
        return str(MediaUrn.parse(urn.text))
    except UrnError as error:
        raise plan_fault(f"this is no media URN: {error}", _inside(urn, urn.text, error, place)) from None


def _inside(urn: Word, text: str, error: UrnError, place: Place | None) -> Place | None:
    """The place of an error inside a URN. What is quoted in it has positions of its own: there it is the URN's."""
    if place is None:
        return None
    offset = error.position - (len(text) - len(urn.text))
    return Place(place.line, place.column + offset) if error.text == text and offset > 0 else place


def is_media(urn: Word) -> bool:
    """Whether a header declares an input."""
    return urn.text[: len(MEDIA)].lower() == MEDIA
