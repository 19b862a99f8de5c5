"""Owns how a compiled plan is drawn as text: with rails for a terminal, and as Mermaid.

It does not know how it is run.
"""

from collections.abc import Iterator

from cartdeck.plans.compiling import CompiledPlan, CompiledStep, Value


def label(step: CompiledStep) -> str:
    """What a step is, in a few words: its cap, who serves it, and how often it is called."""
    each = {0: "", 1: ", for each item", 2: ", for each item of each item"}.get(step.loops, f", {step.loops} deep")
    return f"{step.definition.alias} on {step.route.cartridge.name}{each}"


def terminal_lines(plan: CompiledPlan) -> list[str]:
    """A line for each input, step and output, with the values that are under way as rails on the left.

    ○ is an input, ● a step, ◉ one that is called for each item, ◦ a side output of it that goes on, ◇ an output.
    """
    rows = [*_rows(plan)]
    rails = max((len(rail) for rail, _, _ in rows), default=0)
    names = max((len(name) for _, name, _ in rows), default=0)
    return [f"{rail.ljust(rails)}  {name.ljust(names)}  {about}".rstrip() for rail, name, about in rows]


def _rows(plan: CompiledPlan) -> Iterator[tuple[str, str, str]]:
    left = {value.name: len(value.readers) for value in plan.values.values()}
    lanes: list[str | None] = []
    for value in plan.inputs:
        column = _free(lanes)
        lanes[column] = value.name
        yield _rail(lanes, column, "○", {}), value.name, kind_shown(value)
    for step in plan.steps.values():
        sources = dict.fromkeys(step.step.sources)
        for name in sources:
            left[name] -= 1
        consumed = {column: bool(left[name]) for column, name in enumerate(lanes) if name in sources}
        column = next((one for one, goes_on in consumed.items() if not goes_on), None)
        column = _free(lanes) if column is None else column
        mark = "◉" if step.loops else "●"
        for one, goes_on in consumed.items():
            if not goes_on:
                lanes[one] = None
        target = step.step.target
        lanes[column] = target if target is not None else ""
        about = label(step) + (f" -> {target}" if target is not None and left[target] else "")
        yield _rail(lanes, column, mark, {one: on for one, on in consumed.items() if one != column}), step.name, about
        lanes[column] = target
        if target is not None and not left[target]:
            yield _rail(lanes, column, "◇", {}), target, kind_shown(plan.values[target])
            lanes[column] = None
        for name in step.step.values[target is not None :]:
            column = _free(lanes)
            lanes[column] = name
            yield _rail(lanes, column, "◦" if left[name] else "◇", {}), name, kind_shown(plan.values[name])
            if not left[name]:
                lanes[column] = None
        while lanes and lanes[-1] is None:
            lanes.pop()


def kind_shown(value: Value) -> str:
    """What a value is, in a word or two."""
    return f"{'a sequence of ' if value.depth else ''}{value.media}"


def _free(lanes: list[str | None]) -> int:
    """A column for one more rail."""
    for column, name in enumerate(lanes):
        if name is None:
            return column
    lanes.append(None)
    return len(lanes) - 1


def _rail(lanes: list[str | None], column: int, mark: str, consumed: dict[int, bool]) -> str:
    """The rails of one row; `consumed` are columns that lead into `column`, True for those that go on below."""
    first, last = min((column, *consumed)), max((column, *consumed))
    text = ""
    for one in range(max(len(lanes), last + 1)):
        name = lanes[one] if one < len(lanes) else None
        is_crossed = first < one < last
        if one == column:
            sign = mark
        elif one in consumed:
            sign = ("┤" if one > column else "├") if consumed[one] else ("╯" if one > column else "╰")
            sign = {"╯": "┴", "╰": "┴", "┤": "┼", "├": "┼"}[sign] if is_crossed else sign
        elif is_crossed:
            sign = "─" if name is None else "┼"
        else:
            sign = " " if name is None else "│"
        text += sign + ("─" if first <= one < last else " ")
    return text.rstrip()


def mermaid(plan: CompiledPlan) -> str:
    """The plan as a Mermaid flowchart."""
    lines = ["flowchart LR"]
    names: dict[str, str] = {}
    for number, value in enumerate(plan.inputs, 1):
        names[value.name] = f"i{number}"
        lines.append(f"    i{number}([{_quoted(value.name)}])")
    ids = {name: f"s{number}" for number, name in enumerate(plan.steps, 1)}
    for name, step in plan.steps.items():
        opening, closing = ("[[", "]]") if step.loops else ("[", "]")
        lines.append(f"    {ids[name]}{opening}{_quoted(f'{name}<br/>{label(step)}')}{closing}")
    for name, step in plan.steps.items():
        for source in dict.fromkeys(step.step.sources):
            producer = plan.values[source].producer
            if producer is None:
                lines.append(f"    {names[source]} --> {ids[name]}")
            else:
                lines.append(f"    {ids[producer]} -->|{_quoted(source)}| {ids[name]}")
    for number, value in enumerate(plan.outputs, 1):
        lines.append(f"    o{number}([{_quoted(value.name)}])")
        lines.append(f"    {ids[value.producer or '']} --> o{number}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "#quot;") + '"'
