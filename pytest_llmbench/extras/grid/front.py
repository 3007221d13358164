"""The cells of a session side by side: ``grid.csv``, and ``grid.html`` with a table and the Pareto front.

A cell is on the front of its lengths if no other of them gives a user more tokens a second and the machine as
many, or the machine more and a user as many. Cells of other lengths are other work, and have a front of
their own.
"""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_llmbench.metrics.definitions import MetricDefinition
from pytest_llmbench.model.numbers import number

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
    on_front: bool = False


def cells_of(document: Mapping[str, Any]) -> list[Cell]:
    """The cells of a report, in its order, those on a front marked."""
    found = [_cell(entry) for entry in document["tests"] if entry["test"] == NAME and entry["parameters"]]
    return [_with_front(cell, found) for cell in found]


def _with_front(cell: Cell, every: Sequence[Cell]) -> Cell:
    own = [
        each
        for each in every
        if _lengths(each) == _lengths(cell) and each.by_accelerator == cell.by_accelerator
    ]
    points = [point for each in own if (point := _point(each)) is not None]
    point = _point(cell)
    if point is None or any(_dominates(other, point) for other in points):
        return cell
    return replace(cell, on_front=True)


def _lengths(cell: Cell) -> tuple[int, int]:
    return cell.input_tokens, cell.output_tokens


def _dominates(other: tuple[float, float], point: tuple[float, float]) -> bool:
    return other != point and other[0] >= point[0] and other[1] >= point[1]


def _point(cell: Cell) -> tuple[float, float] | None:
    if cell.per_user is None or cell.per_machine is None:
        return None
    return cell.per_user[0], cell.per_machine[0]


def _cell(entry: Mapping[str, Any]) -> Cell:
    asked, metrics = entry["parameters"], entry["metrics"]
    valid = entry["validity"]["verdict"] == "valid"
    by_accelerator = _range(metrics.get(PER_ACCELERATOR))
    ttft = _range(metrics.get("ttft.p50"))
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
    )


def _range(estimate: Mapping[str, Any] | None) -> Range | None:
    if estimate is None or estimate["point"] is None:
        return None
    return estimate["point"], estimate["lower"], estimate["upper"]


_COLUMNS = (
    "nodeid", "input_tokens", "output_tokens", "concurrency", "verdict", "ttft_p50_ms",
    "tok_s_per_user", "tok_s_per_user_lower", "tok_s_per_user_upper",
    "tok_s", "tok_s_lower", "tok_s_upper", "tok_s_is_per_gpu", "on_front",
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
        writer.writerow((*told, cell.ttft_p50_ms, *figures, cell.by_accelerator, cell.on_front))
    return text.getvalue()


def page(document: Mapping[str, Any]) -> str:
    """One page that opens offline: a picture and a table for each pair of lengths."""
    every = cells_of(document)
    groups = list(dict.fromkeys(map(_lengths, every)))
    style = Path(__file__).with_name("grid.css").read_text("utf-8")
    parts = [
        _group([cell for cell in every if (cell.input_tokens, cell.output_tokens) == group])
        for group in groups
    ]
    body = f"<body><main><h1>Grid</h1>{''.join(parts)}</main></body>"
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
    head = ("Concurrency", "tok/s per user", f"tok/s per {per}", "TTFT P50", "Limits", "Front")
    rows = "".join(_row(cell) for cell in cells)
    columns = "".join(f"<th>{name}</th>" for name in head)
    table = f"<div class=scroll><table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table></div>"
    return f"<section><h2>{title}</h2>{_picture(cells, per)}{table}</section>"


def _row(cell: Cell) -> str:
    ttft = "not measured" if cell.ttft_p50_ms is None else f"{number(cell.ttft_p50_ms)} ms"
    shown = (
        str(cell.concurrency), _figure(cell.per_user), _figure(cell.per_machine), ttft, cell.verdict,
        "on the front" if cell.on_front else "dominated" if _point(cell) else "not measured",
    )  # fmt: skip
    kind = "" if cell.on_front else " class=dominated"
    return f"<tr{kind}>{''.join(f'<td>{html.escape(each)}</td>' for each in shown)}</tr>"


def _figure(found: Range | None) -> str:
    if found is None:
        return "not measured"
    point, lower, upper = (None if end is None else number(end) for end in found)
    return f"{point}" if lower is None or upper is None else f"{point} [{lower}, {upper}]"


_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 380, 70, 50, 20, 40


def _picture(cells: Sequence[Cell], per: str) -> str:
    """Tokens a second of a user to the right, of the machine upwards, both from 0; intervals as lines."""
    drawn = [cell for cell in cells if cell.per_user is not None and cell.per_machine is not None]
    if not drawn:
        return ""
    most_x, most_y = (
        1.08 * max(max(each for each in found if each is not None) for found in ranges)
        for ranges in (_ranges(cell.per_user for cell in drawn), _ranges(cell.per_machine for cell in drawn))
    )

    def x(value: float) -> float:
        return round(_LEFT + value / most_x * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(_HEIGHT - _BOTTOM - value / most_y * (_HEIGHT - _BOTTOM - _TOP), 1)

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
    front = sorted(point for cell in drawn if cell.on_front and (point := _point(cell)) is not None)
    line = " ".join(f"{x(across)},{y(up)}" for across, up in front)
    parts.append(f'<polyline points="{line}" fill="none" stroke="var(--front)" stroke-width="1.5"/>')
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


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to ``most``, three to six of them."""
    power = 10.0 ** math.floor(math.log10(most))
    step = next(each * power for each in (0.2, 0.5, 1.0, 2.0) if most / (each * power) < 6)
    return [at * step for at in range(int(most / step) + 1)]


def _ranges(found: Iterable[Range | None]) -> list[Range]:
    return [each for each in found if each is not None]
