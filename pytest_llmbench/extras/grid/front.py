"""The cells of a session side by side: ``grid.csv``, and ``grid.html`` with a table and the Pareto front.

A cell is on the front of its lengths if no other of them gives a user more tokens a second and the machine as
many, or the machine more and a user as many. Cells of other lengths are other work, and have a front of
their own. A session that was compared with a saved one has the fronts of both in one picture.
"""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_llmbench.metrics.definitions import MetricDefinition
from pytest_llmbench.model.facts import SUTFact
from pytest_llmbench.model.numbers import change, number

NAME: Final = "grid"
PER_USER: Final = "output_tokens_per_user_second"
PER_ACCELERATOR: Final = "output_tokens_per_gpu_second"

USER: Final = MetricDefinition(
    PER_USER,
    "Output tokens per second of a user",
    "tok/s",
    "higher",
    "1000 / mean TPOT in ms",
    "grid",
)

Point = tuple[float, float]
"""Tokens per second of a user, and of an accelerator or the system."""
Range = tuple[float, float | None, float | None]
"""A figure with the ends of its interval; None: open."""


@dataclass(frozen=True)
class Cell:
    """One cell with its figures."""

    nodeid: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    verdict: str
    per_user: Range | None
    """Tokens per second of a user; None: not measured, or void."""
    per_machine: Range | None
    """Tokens per second of an accelerator, or of the whole system where none are declared."""
    by_accelerator: bool
    ttft_p50_ms: float | None
    against: str = ""
    """The name of the baseline that it was compared with; empty: of none."""
    user_change: Range | None = None
    """The change of ``per_user`` against the baseline, and below of ``per_machine``: shares."""
    machine_change: Range | None = None
    on_front: bool = False
    was_on_front: bool = False
    """Whether the baseline's cell was on the front of the baseline."""

    @property
    def lengths(self) -> tuple[int, int]:
        return self.input_tokens, self.output_tokens

    @property
    def change(self) -> str:
        """``worse`` where the whole interval of one of both changes is a loss, ``better`` where that of one
        is a gain and none is a loss, else ``undecided``; empty where nothing was compared."""
        known = [each for each in (self.user_change, self.machine_change) if each is not None]
        if any(upper is not None and upper < 0 for _, _, upper in known):
            return "worse"
        if any(lower is not None and lower > 0 for _, lower, _ in known):
            return "better"
        return "undecided" if known else ""


def cells_of(document: Mapping[str, Any]) -> list[Cell]:
    """The cells of a report, in its order, those on a front marked."""
    found = [_cell(entry) for entry in document["tests"] if entry["test"] == NAME and entry["parameters"]]

    def leads(cell: Cell, point_of: Callable[[Cell], Point | None]) -> bool:
        point, by = point_of(cell), cell.by_accelerator
        own = (each for each in found if each.lengths == cell.lengths and each.by_accelerator == by)
        others = [other for each in own if (other := point_of(each)) not in (None, point)]
        return point is not None and not any(
            other is not None and other[0] >= point[0] and other[1] >= point[1] for other in others
        )

    return [
        replace(cell, on_front=leads(cell, _point), was_on_front=leads(cell, _earlier_point))
        for cell in found
    ]


def _point(cell: Cell) -> Point | None:
    if cell.per_user is None or cell.per_machine is None:
        return None
    return cell.per_user[0], cell.per_machine[0]


def _earlier_point(cell: Cell) -> Point | None:
    """What the baseline gave, by the changes: these are of geometric means over runs."""
    point, changes = _point(cell), (cell.user_change, cell.machine_change)
    if point is None or changes[0] is None or changes[1] is None:
        return None
    return point[0] / (1 + changes[0][0]), point[1] / (1 + changes[1][0])


def _cell(entry: Mapping[str, Any]) -> Cell:
    asked, metrics = entry["parameters"], entry["metrics"]
    valid = entry["validity"]["verdict"] == "valid"
    by_accelerator = _range(metrics.get(PER_ACCELERATOR))
    ttft = _range(metrics.get("ttft.p50"))
    compared = {each["metric"]: each for each in entry.get("comparisons", ()) if valid}
    changes = {name: _range(each["change"]) for name, each in compared.items()}
    return Cell(
        nodeid=entry["nodeid"],
        input_tokens=asked["input_tokens"],
        output_tokens=asked["output_tokens"],
        concurrency=asked["concurrency"],
        verdict=entry["gate"]["verdict"] if valid else "invalid",
        per_user=_range(metrics.get(PER_USER)) if valid else None,
        per_machine=(by_accelerator or _range(metrics.get("output_token_throughput"))) if valid else None,
        by_accelerator=by_accelerator is not None,
        ttft_p50_ms=None if ttft is None or not valid else ttft[0],
        against=next((each["baseline_name"] for each in compared.values()), ""),
        user_change=changes.get(PER_USER),
        machine_change=changes.get("output_token_throughput"),  # of the same accelerators
    )


def _range(estimate: Mapping[str, Any] | None) -> Range | None:
    if estimate is None or estimate["point"] is None:
        return None
    return estimate["point"], estimate["lower"], estimate["upper"]


_COLUMNS = (
    "nodeid", "input_tokens", "output_tokens", "concurrency", "verdict", "ttft_p50_ms",
    "tok_s_per_user", "tok_s_per_user_lower", "tok_s_per_user_upper",
    "tok_s", "tok_s_lower", "tok_s_upper", "tok_s_is_per_gpu", "on_front",
    "against", "change", "tok_s_per_user_change", "tok_s_per_user_change_lower",
    "tok_s_per_user_change_upper", "tok_s_change", "tok_s_change_lower", "tok_s_change_upper", "was_on_front",
)  # fmt: skip


def csv_text(document: Mapping[str, Any]) -> str:
    """A line for each cell; a figure that was not measured is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("# pytest-llmbench grid",))
    writer.writerow(_COLUMNS)
    for cell in cells_of(document):
        nothing = (None, None, None)
        told = cell.nodeid, cell.input_tokens, cell.output_tokens, cell.concurrency, cell.verdict
        figures = *(cell.per_user or nothing), *(cell.per_machine or nothing)
        changes = *(cell.user_change or nothing), *(cell.machine_change or nothing)
        before = (cell.against, cell.change, *changes, cell.was_on_front if cell.against else None)
        writer.writerow((*told, cell.ttft_p50_ms, *figures, cell.by_accelerator, cell.on_front, *before))
    return text.getvalue()


def page(document: Mapping[str, Any]) -> str:
    """One page that opens offline: a picture and a table for each pair of lengths."""
    every = cells_of(document)
    groups = dict.fromkeys(cell.lengths for cell in every)
    style = Path(__file__).with_name("grid.css").read_text("utf-8")
    parts = [_group([cell for cell in every if cell.lengths == group]) for group in groups]
    passed = sum(cell.verdict == "pass" for cell in every)
    about = f"{passed} of {len(every)} cell{'' if len(every) == 1 else 's'} passed"
    sut, started = document["sut"], str(document["started"])[:16].replace("T", " ")
    model = sut["facts"].get(SUTFact.MODEL_NAME, {}).get("value") or sut["model"]
    about += f" · {model} at {sut['endpoint']}" if model else f" · {sut['endpoint']}"
    told = f"<p>{html.escape(f'{about} · {started} UTC')}</p>"
    body = f"<body><main><h1>Grid</h1>{told}{''.join(parts)}</main></body>"
    return f"<!doctype html>\n<html lang=en>{_HEAD}<style>{style}</style></head>{body}</html>\n"


_HEAD = (
    "<head><meta charset=utf-8><title>pytest-llmbench grid</title>"
    '<meta name=viewport content="width=device-width, initial-scale=1">'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)


def _group(cells: Sequence[Cell]) -> str:
    first = cells[0]
    per = "GPU" if first.by_accelerator else "system"
    title = f"{first.input_tokens:,} tokens in, {first.output_tokens:,} out"
    head = ["Concurrency", "tok/s per user", f"tok/s per {per}", "TTFT P50", "Limits", "Front"]
    compared = any(cell.against for cell in cells)
    if compared:
        head += ["Change per user", f"Change per {per}", "Change"]
    rows = ""
    for cell in cells:
        ttft = "not measured" if cell.ttft_p50_ms is None else f"{number(cell.ttft_p50_ms)} ms"
        shown: tuple[str, ...] = (
            str(cell.concurrency), _figure(cell.per_user), _figure(cell.per_machine), ttft, cell.verdict,
            "on the front" if cell.on_front else "dominated" if _point(cell) else "not measured",
        )  # fmt: skip
        if compared:
            shown += _change(cell.user_change), _change(cell.machine_change), cell.change or "not compared"
        kind = "" if cell.on_front else " class=dominated"
        rows += f"<tr{kind}>{''.join(f'<td>{html.escape(each)}</td>' for each in shown)}</tr>"
    columns = "".join(f"<th>{name}</th>" for name in head)
    table = f"<div class=scroll><table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table></div>"
    return f"<section><h2>{title}</h2>{_in_words(cells)}{_picture(cells, per)}{table}</section>"


def _in_words(cells: Sequence[Cell]) -> str:
    """Which cells got worse, in a sentence; nothing where none was compared."""
    known = [cell for cell in cells if cell.change]
    if not known:
        return ""
    against = html.escape(", ".join(dict.fromkeys(cell.against for cell in known)))
    worse = [str(cell.concurrency) for cell in known if cell.change == "worse"]
    said = f"No cell is shown to be worse than {against}."
    if worse:
        said = f"{len(worse)} of {len(known)} cells got worse than {against}: concurrency {', '.join(worse)}."
    said += " The dashed line is its front." if any(cell.was_on_front for cell in cells) else ""
    rest = len(cells) - len(known)
    return f"<p>{said}{f' {rest} were not compared.' if rest else ''}</p>"


def _figure(found: Range | None) -> str:
    if found is None:
        return "not measured"
    point, lower, upper = (None if end is None else number(end) for end in found)
    return f"{point}" if lower is None or upper is None else f"{point} [{lower}, {upper}]"


def _change(found: Range | None) -> str:
    if found is None:
        return "not compared"
    return change(dict(zip(("point", "lower", "upper"), found, strict=True)))


_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 380, 70, 50, 20, 40


def _picture(cells: Sequence[Cell], per: str) -> str:
    """Tokens a second of a user to the right, of the machine upwards, both from 0; intervals as lines."""
    drawn = [cell for cell in cells if cell.per_user is not None and cell.per_machine is not None]
    if not drawn:
        return ""
    earlier = [point for cell in drawn if (point := _earlier_point(cell)) is not None]
    most_x, most_y = (
        1.08 * max(each for found in (*ranges, *before) for each in found if each is not None)
        for ranges, before in (
            (_ranges(cell.per_user for cell in drawn), [point[:1] for point in earlier]),
            (_ranges(cell.per_machine for cell in drawn), [point[1:] for point in earlier]),
        )
    )

    def x(value: float) -> float:
        return round(_LEFT + value / most_x * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(_HEIGHT - _BOTTOM - value / most_y * (_HEIGHT - _BOTTOM - _TOP), 1)

    parts = _axes(x, y, most_x, most_y, per)
    was = [point for cell in drawn if cell.was_on_front and (point := _earlier_point(cell)) is not None]
    front = [point for cell in drawn if cell.on_front and (point := _point(cell)) is not None]
    for points, ink in ((was, 'var(--was)" stroke-dasharray="5 4'), (front, "var(--front)")):
        line = " ".join(f"{x(across)},{y(up)}" for across, up in sorted(points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{ink}" stroke-width="1.5"/>')
    parts += [
        f'<circle cx="{x(across)}" cy="{y(up)}" r="3.5" fill="none" stroke="var(--was)"/>'
        for across, up in earlier
    ]
    below = False
    for before, cell in zip([None, *drawn], drawn, strict=False):
        assert cell.per_user is not None
        assert cell.per_machine is not None
        ink = "var(--front)" if cell.on_front else "var(--dim)"
        at_x, at_y = x(cell.per_user[0]), y(cell.per_machine[0])
        # Names of cells that lie close together take turns above and below.
        near = before is not None and before.per_user is not None and abs(x(before.per_user[0]) - at_x) < 30
        below = near and not below
        left, right = (x(cell.per_user[0] if end is None else end) for end in cell.per_user[1:])
        low, high = (y(cell.per_machine[0] if end is None else end) for end in cell.per_machine[1:])
        parts += [
            f'<path d="M{left} {at_y}H{right}M{at_x} {low}V{high}" stroke="{ink}" opacity="0.5"/>',
            f'<circle cx="{at_x}" cy="{at_y}" r="4" fill="{ink}"/>',
            f'<text x="{at_x + 7}" y="{at_y + 18 if below else at_y - 7}" fill="{ink}">'
            f"{cell.concurrency}</text>",
        ]
    label = f"Tokens per second of a {per} over those of a user, a point for each concurrency"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _axes(
    x: Callable[[float], float], y: Callable[[float], float], most_x: float, most_y: float, per: str
) -> list[str]:
    parts = [
        f'<path d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}" fill="none" stroke="var(--dim)"/>',
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 10}" text-anchor="middle" fill="var(--ink)">'
        "tok/s per user</text>",
        f'<text transform="translate(16 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle" fill="var(--ink)">'
        f"tok/s per {per}</text>",
    ]
    parts += [
        f'<text x="{x(at)}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle" fill="var(--dim)">'
        f"{at:,.10g}</text>"
        for at in _ticks(most_x)
    ]
    parts += [
        f'<text x="{_LEFT - 6}" y="{y(at) + 4}" text-anchor="end" fill="var(--dim)">{at:,.10g}</text>'
        for at in _ticks(most_y)
    ]
    return parts


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to ``most``, three to six of them."""
    power = 10.0 ** math.floor(math.log10(most))
    step = next(each * power for each in (0.2, 0.5, 1.0, 2.0) if most / (each * power) < 6)
    return [at * step for at in range(int(most / step) + 1)]


def _ranges(found: Iterable[Range | None]) -> list[Range]:
    return [each for each in found if each is not None]
