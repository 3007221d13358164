"""Comparisons with a baseline in words: the change with its interval, what is allowed, what could be seen.
And the words they are in: names of metrics as people read them, units on paper, the figures of a test."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from pytest_llmbench.metrics.definitions import METRICS
from pytest_llmbench.model import numbers
from pytest_llmbench.model.numbers import Entry, counted, shown_unit
from pytest_llmbench.registry import named

_NAME = re.compile(r"(?P<base>[^\[.]+)(?:\[(?P<qualifier>[^\]]*)\])?(?:\.(?P<statistic>\w+))?")
_LENGTHS = re.compile(r"\d+(-\d+|\+)")
_STATISTICS = {"p50": "P50", "p90": "P90", "p95": "P95", "p99": "P99", "p99_9": "P99.9"}
_ABBREVIATED = ("ttft", "tpot", "e2e", "itl")
_TAKEN_AS_TTFT = ("scheduled", "any", "first_event")

HEADLINES: Mapping[str, tuple[str, ...]] = {
    "ttft": ("ttft.p99", "tpot.p99", "output_token_throughput"),
    "throughput": (
        "max_output_token_throughput", "constrained_output_token_throughput", "sustainable_rate",
        "sustainable_concurrency", "output_tokens_per_gpu_second",
    ),
    "tradeoff": (
        "operating_point_rate", "operating_point_throughput", "knee_rate", "saturation_rate",
        "max_output_token_throughput",
    ),
    "itl": ("itl[*].p99", "itl_tail_ratio[*]"),
    "capacity": ("max_concurrency", "max_sessions", "output_token_throughput", "tokens_in_flight"),
    "fairness": ("jain_index", "class_jain_index", "starvation_rate[*]", "ttft_inflation[*].p50"),
    "prefix_cache": ("ttft_reduction[*].p50", "cache_hit_rate[*]", "throughput_improvement[*]"),
    "memory_pressure": (
        "fail_rate[*]", "preemption_rate[*]", "preemption_recovery_rate[*]", "recovery_time[*]",
    ),
    "long_context": ("prefill_exponent", "prefill_exponent_fit", "prefill_slope", "prefill_linear_fit"),
    "guardrail": (
        "input_filter_overhead[*].p50", "guardrail_overhead[*].p50", "throughput_reduction[*]",
    ),
}  # fmt: skip
"""Test → its main metrics, the most telling first; ``[*]`` stands for every qualifier and for none."""


class MetricName(NamedTuple):
    """A metric name taken apart, such as ``itl[90%].p99``; empty where a part is not there."""

    base: str
    qualifier: str
    statistic: str

    @property
    def family(self) -> str:
        """The family with its qualifier: ``itl[90%]``."""
        return f"{self.base}[{self.qualifier}]" if self.qualifier else self.base

    @property
    def is_bucket(self) -> bool:
        """Whether the metric is for one range of input lengths."""
        return bool(_LENGTHS.fullmatch(self.qualifier))


def metric_name(name: str) -> MetricName:
    match = _NAME.fullmatch(name)
    if match is None:
        return MetricName(name, "", "")
    return MetricName(match["base"], match["qualifier"] or "", match["statistic"] or "")


def metric_label(name: str, *, qualified: bool = True) -> str:
    """The label of a metric: ``ttft.p99_9`` becomes ``TTFT P99.9``, ``starvation_rate[short]`` ``Starvation
    rate [short]``."""
    base, qualifier, statistic = metric_name(name)
    stem, _, variant = base.partition("_")
    if stem in _ABBREVIATED and (not variant or variant in _TAKEN_AS_TTFT):
        label = stem.upper() + (f" ({variant.replace('_', ' ')})" if variant else "")
    else:
        label = METRICS[base].title if base in METRICS else base.replace("_", " ").capitalize()
    of = f" [{qualifier}]" if qualifier and qualified else ""
    return f"{label}{of} {statistic_label(statistic)}".strip()


def statistic_label(statistic: str) -> str:
    """The label of a statistic: ``p99_9`` becomes ``P99.9``."""
    return _STATISTICS.get(statistic, statistic.replace("_", " ").capitalize())


def headline_names(test: str, names: Iterable[str]) -> list[str]:
    """The ``names`` that are main metrics of the test, in the order of :data:`HEADLINES`."""
    measured = [(name, metric_name(name)) for name in names]
    found: list[str] = []
    for pattern in HEADLINES.get(test) or named("main_metrics", test) or ():
        base, qualifier, statistic = metric_name(pattern)
        found += [
            name
            for name, parts in measured
            if (parts.base, parts.statistic) == (base, statistic)
            and (not parts.qualifier or (qualifier == "*" and not parts.is_bucket))
        ]
    return found


COLUMNS = ("Metric", "Baseline", "Now", "Change and interval", "Allowed", "Detectable", "Verdict")
SYSTEMS = "systems_comparison"
"""Id of the table of systems side by side."""
_MOST_METRICS = 6
BRIEF_COLUMNS = ("Verdict", "Metric", "Change and interval", "Allowed", "Baseline → now")
TONES = {
    "regressed": "bad",
    "unconfirmed": "warn",
    "improved": "good",
    "equivalent": "good",
    "not_worse": "good",
    "inconclusive": "warn",
}


def verdict_text(comparison: Entry) -> str:
    return str(comparison["verdict"]).replace("_", " ")


def change_text(comparison: Entry) -> str:
    """The change with its interval: ``+5.1 % [+4.2 %, +6 %]``; open ends are named as such."""
    return numbers.change(comparison["change"])


def allowed_text(comparison: Entry, key: Literal["margin", "mde"] = "margin") -> str:
    """The allowed change with its direction: ``+5 %`` for a latency, ``-5 %`` for a rate.

    ``mde``: the smallest worsening that so many runs, or sessions, would have called regressed four times out
    of five."""
    if comparison[key] is None:
        return numbers.NOT_KNOWN
    sign = "+" if comparison["better"] == "lower" else "-"
    return f"{sign}{numbers.percentage(comparison[key])}"


def means_text(comparison: Entry, arm: str) -> str:
    """The geometric mean of an arm, ``524 ms (3 runs)``, or ``(1 session)``; the change is the ratio of the
    two means."""
    values = comparison[arm]
    if not values:
        return numbers.NOT_MEASURED
    unit = shown_unit(comparison["metric"], comparison["unit"])
    return f"{numbers.quantity(mean_of(values), unit)} ({counted(len(values), _unit_of(comparison))})"


def sentence(comparison: Entry) -> str:
    """A comparison for people in a hurry: ``candidate is 4.7 % slower than main in TPOT P50 [3.9, 5.5],
    allowed 5 %``.

    The interval is that of the figure beside it, so a change that may also be for the better has a negative
    end.
    """
    change, label = comparison["change"], metric_label(comparison["metric"])
    if change["point"] is None:
        return f"{comparison['candidate_name']}: {label} {numbers.NOT_MEASURED}"
    more = change["point"] >= 0
    of_time = shown_unit(comparison["metric"], comparison["unit"]) in ("ms", "s")
    word = ("slower" if more else "faster") if of_time else ("higher" if more else "lower")
    sign = 100.0 if more else -100.0
    ends = [None if change[end] is None else sign * change[end] for end in ("lower", "upper")]
    low, high = ("open" if end is None else numbers.number(end) for end in (ends if more else ends[::-1]))
    size = f"is {numbers.percentage(abs(change['point']))} {word} than" if change["point"] else "equals"
    return (
        f"{comparison['candidate_name']} {size} {comparison['baseline_name']} in {label} [{low}, {high}], "
        f"allowed {numbers.percentage(comparison['margin'])}"
    )


def comparison_text(comparison: Entry) -> str:
    """One comparison on a line: metric, change, both arms, what was allowed and what could be seen."""
    arms = (
        f"{comparison['baseline_name']} {means_text(comparison, 'baseline')}, {comparison['candidate_name']} "
        + (means_text(comparison, "candidate"))
    )
    return (
        f"{comparison['metric']} {change_text(comparison)} against {allowed_text(comparison)} allowed; "
        f"{arms}; minimum detectable effect {allowed_text(comparison, 'mde')}; {comparison['reason']}"
    )


def subject(comparison: Entry, found: Sequence[Entry]) -> str:
    """What a comparison among these is of: ``theirs: TTFT P99 (shown only)``."""
    only = "" if comparison.get("gated") else " (shown only)"
    return f"{system_of(comparison, found)}{metric_label(comparison['metric'])}{only}"


def row(comparison: Entry, found: Sequence[Entry]) -> tuple[str, ...]:
    """The cells of a comparison under :data:`COLUMNS`."""
    return (
        subject(comparison, found),
        means_text(comparison, "baseline"),
        means_text(comparison, "candidate"),
        change_text(comparison),
        allowed_text(comparison),
        allowed_text(comparison, "mde"),
        verdict_text(comparison),
    )


def brief_row(comparison: Entry, found: Sequence[Entry]) -> tuple[str, ...]:
    """The cells of a comparison where there is little room, under :data:`BRIEF_COLUMNS`."""
    return (
        verdict_text(comparison),
        subject(comparison, found),
        change_text(comparison),
        allowed_text(comparison),
        f"{means_text(comparison, 'baseline')} → {means_text(comparison, 'candidate')}",
    )


class Systems(NamedTuple):
    """The systems of a test side by side, in short: the metrics that changed, those that regressed first;
    where none did, the first ones."""

    names: list[str]
    """The systems; the first is what the others are compared with."""
    rows: list[tuple[str, list[str], list[tuple[str, str]]]]
    """Metric; value of each system; change and verdict of each but the first."""
    more: int
    """Metrics that are left out."""

    @property
    def columns(self) -> list[str]:
        """The heads of a table with the metric, the first system, and each other one against it."""
        first, *others = self.names
        return ["Metric", first, *(f"{name}, against {first}" for name in others)]


def systems(table: Entry, shown: Collection[str] = ()) -> Systems:
    """The table :data:`SYSTEMS` in short, without the tests of significance that only support it.

    :param shown: rows, joined by line breaks, that the reader has seen.
    """
    columns = table["columns"]
    kept = [at for at, name in enumerate(columns) if not name.startswith("Mann-Whitney")]
    count = (len(kept) + 1) // 3
    fresh = [row for row in table["rows"] if "\n".join(row) not in shown]
    made = []
    for row in fresh:
        metric, *cells = [row[at] for at in kept]
        changes = cells[count:]
        made.append((metric, cells[:count], list(zip(changes[::2], changes[1::2], strict=True))))
    rank = {"regressed": 0, "improved": 1}
    ranks = [min((rank.get(verdict, 2) for _, verdict in changes), default=2) for *_, changes in made]
    found = [made[at] for at in sorted(range(len(made)), key=lambda at: ranks[at]) if ranks[at] < 2] or made
    return Systems(
        [columns[at] for at in kept[1 : count + 1]],
        found[:_MOST_METRICS],
        len(made) - len(found[:_MOST_METRICS]),
    )


def shown_text(found: Sequence[Entry]) -> str:
    """What comparisons that decide nothing show, each system for itself: ``against a: b regressed in 4 of 16
    metrics, c improved in 9``."""
    seen: dict[str, dict[str, dict[tuple[str, str], str]]] = {}
    for one in found:
        of_system = seen.setdefault(one["baseline_name"], {}).setdefault(one["candidate_name"], {})
        of_system[one["metric"], change_text(one)] = one["verdict"]
    told = []
    for baseline, candidates in seen.items():
        each = []
        for name, verdicts in candidates.items():
            counts = Counter(verdicts.values())
            parts = [f"{word} in {counts[word]}" for word in ("regressed", "improved") if counts[word]]
            of = counted(len(verdicts), "metric")
            each.append(
                f"{name} {' and '.join(parts)} of {of}" if parts else f"no change shown of {name} in {of}"
            )
        told.append(f"against {baseline}: {', '.join(each)}")
    return "; ".join(told)


def system_of(comparison: Entry, found: Sequence[Entry]) -> str:
    """A prefix to a metric, ``theirs: ``, where several systems are compared with one; else empty."""
    return f"{comparison['candidate_name']}: " if len(_candidates(found)) > 1 else ""


def _candidates(found: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(str(comparison["candidate_name"]) for comparison in found))


def caption(found: Sequence[Entry]) -> str:
    first = found[0]
    how = "runs in pairs" if first["paired"] else f"independent {_unit_of(first)}s"
    candidates = _candidates(found)
    each = ", each" if len(candidates) > 1 else ""
    return f"{', '.join(candidates)}{each} compared with {first['baseline_name']} ({how})"


def _unit_of(comparison: Entry) -> str:
    return str(comparison.get("unit_of_replication", "run"))


def mean_of(values: Sequence[float]) -> float | None:
    """The geometric mean over runs, or the arithmetic one if a run measured zero or less; None without
    runs."""
    if not values:
        return None
    if min(values) <= 0:
        return sum(values) / len(values)
    product = 1.0
    for value in values:
        product *= value ** (1.0 / len(values))
    return product
