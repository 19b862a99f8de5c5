"""Owns how a compiled plan is drawn as SVG.

It does not know terminals, nor where the boxes stand.
"""

from html import escape
from typing import Final

from cartdeck.plans.compiling import CompiledPlan
from cartdeck.plans.layout import BOX_HEIGHT, BOX_WIDTH, Box, lay_out

_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1a1a1a}.small{font-size:10.5px;fill:#555}"
    ".step{fill:#eef3fb;stroke:#4a6fa5}.mapped{stroke-dasharray:5 3}.value{fill:#f6f4ec;stroke:#9a8b5f}"
    ".wire{fill:none;stroke:#777;stroke-width:1.4}"
)


def to_svg(plan: CompiledPlan) -> str:
    """The plan as one SVG document. Wires carry the names of their values."""
    layout = lay_out(plan)
    boxes, width, height = layout.boxes, layout.width, layout.height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>',
    ]
    parts += [_wire(boxes[giver], boxes[taker], name) for giver, taker, name in layout.wires]
    parts += [_box(box) for box in boxes.values()]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(box: Box) -> str:
    radius = BOX_HEIGHT / 2 if box.kind == "value" else 6
    middle = box.x + BOX_WIDTH / 2
    return (
        f'<g><title>{escape(box.title)}: {escape(box.about)}</title><rect class="{box.kind}" x="{box.x:g}" '
        f'y="{box.y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="{radius:g}"/>'
        f'<text x="{middle:g}" y="{box.y + 20:g}" text-anchor="middle">{escape(_short(box.title, 26))}</text>'
        f'<text class="small" x="{middle:g}" y="{box.y + 36:g}" text-anchor="middle">'
        f"{escape(_short(box.about, 34))}</text></g>"
    )


def _wire(giver: Box, taker: Box, name: str) -> str:
    x, y = giver.x + BOX_WIDTH, giver.y + BOX_HEIGHT / 2
    to_x, to_y = taker.x, taker.y + BOX_HEIGHT / 2
    half = max(24.0, (to_x - x) / 2)
    path = f"M{x:g} {y:g}C{x + half:g} {y:g} {to_x - half:g} {to_y:g} {to_x:g} {to_y:g}"
    wire = f'<path class="wire" d="{path}" marker-end="url(#tip)"/>'
    if name:
        middle_x, middle_y = (x + to_x) / 2, (y + to_y) / 2 - 5
        text = escape(_short(name, 12))
        wire += f'<text class="small" x="{middle_x:g}" y="{middle_y:g}" text-anchor="middle">{text}</text>'
    return wire


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
