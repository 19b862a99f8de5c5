"""Owns how a compiled plan is drawn as SVG: boxes in columns, as far right as their longest way in is long.

It does not know terminals.
"""

from dataclasses import dataclass
from html import escape
from typing import Final

from cartdeck.plans.compiling import CompiledPlan
from cartdeck.plans.drawing import label

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 46, 70, 22, 16
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1a1a1a}.small{font-size:10.5px;fill:#555}"
    ".step{fill:#eef3fb;stroke:#4a6fa5}.mapped{stroke-dasharray:5 3}.value{fill:#f6f4ec;stroke:#9a8b5f}"
    ".wire{fill:none;stroke:#777;stroke-width:1.4}"
)


@dataclass(slots=True)
class _Box:
    title: str
    about: str
    kind: str
    column: int
    row: float = 0.0

    @property
    def x(self) -> float:
        return _MARGIN + self.column * (_WIDTH + _GAP_X)

    @property
    def y(self) -> float:
        return _MARGIN + self.row * (_HEIGHT + _GAP_Y)


def to_svg(plan: CompiledPlan) -> str:
    """The plan as one SVG document. Wires carry the names of their values."""
    boxes, wires = _graph(plan)
    _arrange(boxes, wires)
    width = max(box.x for box in boxes.values()) + _WIDTH + _MARGIN
    height = max(box.y for box in boxes.values()) + _HEIGHT + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>',
    ]
    parts += [_wire(boxes[giver], boxes[taker], name) for giver, taker, name in wires]
    parts += [_box(box) for box in boxes.values()]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _graph(plan: CompiledPlan) -> tuple[dict[str, _Box], list[tuple[str, str, str]]]:
    boxes: dict[str, _Box] = {}
    wires: list[tuple[str, str, str]] = []
    for value in plan.inputs:
        boxes[f"value {value.name}"] = _Box(value.name, str(value.media), "value", 0)
    for name, step in plan.steps.items():
        column = 0
        for source in dict.fromkeys(step.step.sources):
            producer = plan.values[source].producer
            giver = f"value {source}" if producer is None else f"step {producer}"
            wires.append((giver, f"step {name}", "" if producer is None else source))
            column = max(column, boxes[giver].column + 1)
        kind = "step mapped" if step.loops else "step"
        boxes[f"step {name}"] = _Box(name, label(step), kind, column)
    for value in plan.outputs:
        giver = f"step {value.producer}"
        boxes[f"value {value.name}"] = _Box(value.name, str(value.media), "value", boxes[giver].column + 1)
        wires.append((giver, f"value {value.name}", ""))
    return boxes, wires


def _arrange(boxes: dict[str, _Box], wires: list[tuple[str, str, str]]) -> None:
    """Rows in each column: each box near the middle of what leads into it."""
    givers: dict[str, list[str]] = {}
    for giver, taker, _ in wires:
        givers.setdefault(taker, []).append(giver)
    columns: dict[int, list[str]] = {}
    for name, box in boxes.items():
        columns.setdefault(box.column, []).append(name)
    for column in sorted(columns):
        wanted = {
            name: sum(boxes[giver].row for giver in givers.get(name, [])) / len(givers[name]) if name in givers else 0.0
            for name in columns[column]
        }
        row = 0.0
        for name in sorted(columns[column], key=lambda one: wanted[one]):
            boxes[name].row = max(row, wanted[name])
            row = boxes[name].row + 1


def _box(box: _Box) -> str:
    radius = _HEIGHT / 2 if box.kind == "value" else 6
    middle = box.x + _WIDTH / 2
    return (
        f'<g><title>{escape(box.title)}: {escape(box.about)}</title><rect class="{box.kind}" x="{box.x:g}" '
        f'y="{box.y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="{radius:g}"/>'
        f'<text x="{middle:g}" y="{box.y + 20:g}" text-anchor="middle">{escape(_short(box.title, 26))}</text>'
        f'<text class="small" x="{middle:g}" y="{box.y + 36:g}" text-anchor="middle">'
        f"{escape(_short(box.about, 34))}</text></g>"
    )


def _wire(giver: _Box, taker: _Box, name: str) -> str:
    x, y = giver.x + _WIDTH, giver.y + _HEIGHT / 2
    to_x, to_y = taker.x, taker.y + _HEIGHT / 2
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
