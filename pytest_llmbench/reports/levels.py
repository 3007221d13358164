"""The levels of a test as one table: the offered load, the results, and the test that measured it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pytest_llmbench.model import numbers
from pytest_llmbench.model.numbers import Entry

_FIGURES = (
    ("Achieved", "output_token_throughput"),
    ("TTFT P50", "ttft.p50"),
    ("TTFT P99", "ttft.p99"),
    ("TPOT P50", "tpot.p50"),
    ("TPOT P99", "tpot.p99"),
)


class Rows(NamedTuple):
    """A table without a title."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def level_table(levels: Sequence[Entry]) -> Rows:
    """A table with a row per level. Columns that are empty for all levels are left out."""
    columns = ["Level", "Offered", *(title for title, _ in _FIGURES), "Completion", "Queue", "Saturated"]
    rows = [[*_always(level)] for level in levels]
    if all(level["label"] == offered(level) for level in levels):  # the label is the load
        columns[:2] = ["Offered"]
        rows = [[row[0], *row[2:]] for row in rows]
    if any(level.get("passed") is not None for level in levels):
        columns.append("Criteria")
        for row, level in zip(rows, levels, strict=True):
            row.append(_yes_no(level.get("passed"), ("met", "not met", "none"), level.get("fail_reasons")))
    if any(level.get("shared_from") for level in levels):
        columns.append("Measured by")
        for row, level in zip(rows, levels, strict=True):
            row.append(level.get("shared_from") or "this test")
    return Rows(columns, rows)


def _always(level: Entry) -> list[str]:
    return [
        level_name(level),
        offered(level),
        *(_figure(name, level["metrics"].get(name)) for _, name in _FIGURES),
        _completion(level),
        _yes_no(level.get("queue_growing"), ("growing", "stable", "not known")),
        _yes_no(level.get("saturated"), ("yes", "no", "not known"), level.get("saturation_reasons")),
    ]


def level_name(level: Entry) -> str:
    """The name of a level, ``80% (reported)``, with variant and request class where there is one."""
    parts = [level["label"]]
    parts += [f"variant {level['variant']}"] if level.get("variant") else []
    parts += [f"class {level['class_label']}"] if level.get("class_label") else []
    role = level.get("role")
    return ", ".join(parts) + (f" ({role})" if role and role not in level["label"] else "")


def offered(level: Entry) -> str:
    """The offered load, ``20 req/s`` or ``64 in flight``; with the share of the capacity if the level is
    defined by it."""
    if level.get("concurrency") is not None:
        text = f"{level['concurrency']} in flight"
    elif level.get("offered_rps") is not None:
        text = f"{numbers.number(level['offered_rps'])} req/s"
    else:
        text = "not known"
    share = level.get("percent_of_capacity")
    told = share is None or f"{share:g}%" in level["label"]
    return text if told else f"{text}, {numbers.number(share)} %"


def load_text(level: Entry) -> str:
    """The load of a level in words: ``open loop, 20 req/s``."""
    return f"{level['load_model']} loop, {offered(level)}"


def _figure(name: str, metric: Entry | None) -> str:
    if metric is None:
        return numbers.NOT_MEASURED
    return numbers.tagged(numbers.point(metric), name, metric)


def _completion(level: Entry) -> str:
    ratio = level.get("completion_ratio")
    text = numbers.NOT_MEASURED if ratio is None else numbers.percentage(ratio)
    errors = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in level.get("errors", {}).items())
    return f"{text}; {errors}" if errors else text


def _yes_no(value: Any, words: tuple[str, str, str], reasons: Iterable[str] | None = None) -> str:
    """The word for true, false or unknown; reasons are added to the bad one."""
    word = words[2] if value is None else words[0] if value else words[1]
    listed = "; ".join(reasons or ())
    return f"{word}: {listed}" if listed else word
