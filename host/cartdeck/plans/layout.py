"""Owns where the boxes of a drawn plan stand: in columns, as far right as their longest way in is long.

It does not know what draws them: SVG, or a page.
"""

from dataclasses import dataclass
from typing import Final

from cartdeck.plans.compiling import CompiledPlan
from cartdeck.plans.drawing import label

BOX_WIDTH: Final = 190
BOX_HEIGHT: Final = 46
_GAP_X, _GAP_Y, _MARGIN = 70, 22, 16


@dataclass(slots=True)
class Box:
    """An input, a step or an output."""

    title: str
    about: str
    kind: str
    """`value`, `step`, or `step mapped`."""
    column: int
    row: float = 0.0

    @property
    def x(self) -> float:
        return _MARGIN + self.column * (BOX_WIDTH + _GAP_X)

    @property
    def y(self) -> float:
        return _MARGIN + self.row * (BOX_HEIGHT + _GAP_Y)


@dataclass(slots=True, frozen=True)
class Layout:
    """Boxes by `step NAME` and `value NAME`; wires from one to another, each with its value's name, or none where the
    box says it. Lengths are pixels."""

    boxes: dict[str, Box]
    wires: list[tuple[str, str, str]]

    @property
    def width(self) -> float:
        return max((box.x for box in self.boxes.values()), default=0) + BOX_WIDTH + _MARGIN

    @property
    def height(self) -> float:
        return max((box.y for box in self.boxes.values()), default=0) + BOX_HEIGHT + _MARGIN


def lay_out(plan: CompiledPlan) -> Layout:
    boxes, wires = _graph(plan)
    _arrange(boxes, wires)
    return Layout(boxes, wires)


def _graph(plan: CompiledPlan) -> tuple[dict[str, Box], list[tuple[str, str, str]]]:
    boxes: dict[str, Box] = {}
    wires: list[tuple[str, str, str]] = []
    for value in plan.inputs:
        boxes[f"value {value.name}"] = Box(value.name, str(value.media), "value", 0)
    for name, step in plan.steps.items():
        column = 0
        for source in dict.fromkeys(step.step.sources):
            producer = plan.values[source].producer
            giver = f"value {source}" if producer is None else f"step {producer}"
            wires.append((giver, f"step {name}", "" if producer is None else source))
            column = max(column, boxes[giver].column + 1)
        kind = "step mapped" if step.loops else "step"
        boxes[f"step {name}"] = Box(name, label(step), kind, column)
    for value in plan.outputs:
        giver = f"step {value.producer}"
        boxes[f"value {value.name}"] = Box(value.name, str(value.media), "value", boxes[giver].column + 1)
        wires.append((giver, f"value {value.name}", ""))
    return boxes, wires


def _arrange(boxes: dict[str, Box], wires: list[tuple[str, str, str]]) -> None:
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
