"""Goodput: the requests that meet every limit at once, as a share of all and as a rate.

No test of the draft: the terminology defines goodput and SLO attainment rate, the methodology has no
procedure for them. This one is that of the TTFT test: warm up, send one load, judge. So it has no compliance
class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmbench.methodology.measuring.adaptive import GOODPUT_SHARE, AdaptiveParameters
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.job_figures import figures
from pytest_llmbench.methodology.measuring.one_load import Told, one_load, one_load_test
from pytest_llmbench.methodology.parameters import limit, parameter
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.metrics.latency import distribution_of, tpot_ms
from pytest_llmbench.metrics.throughput import SCHEMA_VIOLATIONS, good, goodput, rates, uncounted
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import NOT_MEASURED, Cell, cells, percentage, trimmed
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Quantity
from pytest_llmbench.model.result import Table, metric_table
from pytest_llmbench.model.sentences import Note

HEADING = Heading("goodput", "", "Goodput")
MOST_WITHOUT_TPOT = 0.05
"""The largest share of the replies that may be too short for a TPOT without a warning."""


@dataclass(frozen=True, kw_only=True)
class Parameters(AdaptiveParameters):
    """The requests that meet every limit at once.

    A request is good when it ends well and keeps ``ttft_ms``, ``tpot_ms`` and ``e2e_ms``, as far as they are
    given.
    """

    of_the_draft = False
    repeats = True

    ttft_ms: float | None = parameter("positive")
    tpot_ms: float | None = parameter("positive")
    e2e_ms: float | None = parameter("positive")
    min_share: float = limit(
        GOODPUT_SHARE,
        "share",
        0.99,
        doc="least share of good requests, judged on the whole confidence interval.",
    )
    max_schema_violation_rate: float | None = limit(
        SCHEMA_VIOLATIONS,
        "share",
        doc="largest share of replies that break the requested schema (tool calls, JSON), among replies "
        "with one.",
    )
    max_error_share: float = parameter(
        "share",
        1.0,
        doc="error budget; a larger share of failed requests voids the run. By default no share does: a "
        "failed request is not good, so the limit counts it.",
    )

    @property
    def limits_ms(self) -> tuple[tuple[Quantity, float], ...]:
        given: tuple[tuple[Quantity, float | None], ...] = (
            ("ttft", self.ttft_ms),
            ("tpot", self.tpot_ms),
            ("e2e", self.e2e_ms),
        )
        return tuple((quantity, limit) for quantity, limit in given if limit is not None)

    def contradictions(self) -> list[str]:
        found = super().contradictions()
        if not self.limits_ms:
            found.append(
                "give at least one of ttft_ms, tpot_ms and e2e_ms: they define which requests are good"
            )
        return found


@one_load(HEADING)
def result(parameters: Parameters, setting: Setting, seen: Sequence[Observation]) -> Told:
    def measure(runs: Sequence[Observation]) -> dict[str, Estimate]:
        found = goodput(runs, parameters.limits_ms, seed=setting.seed)
        for family in _NAMES:
            found |= distribution_of(family, [run.records for run in runs])
        return found | rates(runs, seed=setting.seed)

    metrics, own_runs = figures(parameters, setting, seen, measure)
    return Told(
        metrics,
        own_runs,
        tables=(_table(parameters, metrics, seen),),
        notes=(Note.of("outside_draft", test="goodput"),),
        findings=_findings(parameters, seen),
    )


def _findings(parameters: Parameters, seen: Sequence[Observation]) -> tuple[Finding, ...]:
    """The finding on replies of fewer than two tokens, of which a limit on TPOT asks nothing, where they are
    many. Void where all are: a model that stops at once would keep any limit."""
    ended = sum(int(run.records.ok.sum()) for run in seen)
    if parameters.tpot_ms is None or not ended:
        return ()
    held = sum(len(tpot_ms(run.records)) for run in seen)
    short = sum(int(np.count_nonzero(good(run.records, [("tpot", math.inf)]))) for run in seen) - held
    share = short / ended
    if share <= MOST_WITHOUT_TPOT:
        return ()
    voids = short == ended
    case, most = "replies_without_tpot", MOST_WITHOUT_TPOT
    return (Finding.of(case, value=share, limit=most, voids=voids, short=short, replies=ended),)


_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end latency"}


def _table(parameters: Parameters, metrics: Mapping[str, Estimate], seen: Sequence[Observation]) -> Table:
    """A table of what each limit costs: each alone, then all together."""
    total = sum(len(run.records) for run in seen)

    def kept(limits: Sequence[tuple[Quantity, float]]) -> str:
        if uncounted([run.records for run in seen], limits):
            return NOT_MEASURED
        met = sum(int(np.count_nonzero(good(run.records, limits))) for run in seen)
        return f"{met} of {total}" + (f" ({percentage(met / total)})" if total else "")

    rows: list[tuple[str, Cell]] = [("Requests that ended well", kept(()))]
    rows += [
        (f"{_NAMES[name]} ≤ {trimmed(limit)} ms", kept([(name, limit)]))
        for name, limit in parameters.limits_ms
    ]
    named = {
        "Share within all limits": GOODPUT_SHARE,
        "Goodput": "goodput",
        "Output token goodput": "output_token_goodput",
    }
    rows.append(("All limits together", kept(parameters.limits_ms)))
    rows += zip(named, cells(metrics, named.values()), strict=True)
    return metric_table("goodput_results", "Goodput Results", rows)


TEST = one_load_test(HEADING, Parameters, result)
