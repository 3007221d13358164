"""Reasoning: models that think before they answer, and what their users wait for.

No test of the draft, for which reasoning is output but no content (AMB-29). The procedure is that of the TTFT
test: warm up, send one load, judge; by default a mix of chat and reasoning at Poisson arrivals. The end of
thinking splits a reply into a phase that nobody reads and one that somebody does: how long until that begins
(TTFO), what the switch costs (TTOT), how evenly it comes (ITL of the output phase), what the thoughts cost
(tokens, their share), and what the server did about it (budgets enforced, evictions while it answered).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmbench.methodology.measuring.adaptive import AdaptiveParameters
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.job_figures import figures
from pytest_llmbench.methodology.measuring.one_load import Told, one_load, one_load_test
from pytest_llmbench.methodology.parameters import limit, parameter
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.metrics import latency
from pytest_llmbench.metrics import reasoning as measured
from pytest_llmbench.metrics.itl import Option, itl_distribution
from pytest_llmbench.metrics.summary import GivenUp, distribution
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import ResultFact
from pytest_llmbench.model.numbers import Figure, Row, cells
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Load, OpenLoop
from pytest_llmbench.model.records import Records, split_by_class
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import Plot, Table, metric_table
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.counted import ecdf
from pytest_llmbench.workloads.mixture import CHAT_AND_REASONING

HEADING = Heading("reasoning", "", "Reasoning")
DEFAULT_RATE = 1.0
"""Requests per second of a test that names no load: reasoning takes long, and a queue hides what it costs."""
_FAMILIES = {"ttot": "TTOT", "ttfo": "TTFO", "output_itl": "Output ITL"}
_TAILS = {"p50": "P50", "p95": "P95", "p99": "P99"}


@dataclass(frozen=True, kw_only=True)
class Parameters(AdaptiveParameters):
    """What a user of a model that thinks first waits for, and why.

    Limits (``*_ms``, ``max_*``) are ceilings, judged on the whole confidence interval.
    """

    of_the_draft = False
    repeats = True

    workload: str | Workload = parameter(
        "workload",
        CHAT_AND_REASONING.name,
        doc="name of a workload, or a workload object; limits on one class of a mix go into ``slo``.",
    )
    rate: float | None = parameter(
        "positive",
        doc="open loop: requests per second (default 1); see ``arrival`` (default ``poisson``).",
    )
    concurrency: int | None = parameter("count", doc="closed loop: requests in flight, instead of ``rate``.")
    slo: Sequence[Objective] = parameter(
        "slo",
        (),
        doc='further objectives, ``[metric("ttot[chat].p95", "ms") <= 300 * ms]``.',
    )
    ttot_p50_ms: float | None = limit("ttot.p50")
    ttot_p95_ms: float | None = limit(
        "ttot.p95", doc="limit on P95 of the time from the end of thinking to the first visible content."
    )
    ttot_p99_ms: float | None = limit("ttot.p99")
    ttfo_p50_ms: float | None = limit("ttfo.p50")
    ttfo_p95_ms: float | None = limit(
        "ttfo.p95", doc="limit on P95 of the time from submission to the first visible content."
    )
    ttfo_p99_ms: float | None = limit("ttfo.p99")
    output_itl_p50_ms: float | None = limit("output_itl.p50")
    output_itl_p95_ms: float | None = limit("output_itl.p95")
    output_itl_p99_ms: float | None = limit(
        "output_itl.p99",
        doc="limit on P99 of the gaps between tokens, starting at the first visible content.",
    )
    max_think_tokens_mean: float | None = limit(
        "think_tokens.mean", doc="largest mean number of reasoning tokens, over replies that reasoned."
    )
    max_think_tokens_p95: float | None = limit("think_tokens.p95")
    max_think_share: float | None = limit(
        "think_share", "share", doc="largest share of reasoning tokens among all output tokens."
    )
    max_budget_force_rate: float | None = limit(
        "budget_force_rate", "share", doc="largest share of replies whose reasoning the server ended."
    )
    max_critical_evictions: int | None = limit(
        "critical_evictions",
        "amount",
        doc="most evictions of requests in their output phase, as the server counts them; 0 allows none.",
    )

    @property
    def load(self) -> Load:
        given = super().load
        return OpenLoop(DEFAULT_RATE) if given.in_flight is not None and self.concurrency is None else given


@one_load(HEADING)
def result(parameters: Parameters, setting: Setting, seen: Sequence[Observation]) -> Told:
    runs = [run.records for run in seen]
    natural = tuple(
        setting.facts.value(ResultFact.REASONING_NATURAL_END_REASONS) or measured.NATURAL_END_REASONS
    )
    option = measured.output_itl_option(runs)
    classes = split_by_class(runs)
    metrics, own_runs = figures(
        parameters, setting, seen, lambda those: _metrics(those, natural, option, setting.seed)
    )
    kinds = measured.reply_kinds(runs)
    return Told(
        metrics,
        own_runs,
        tables=(
            _results(metrics, option),
            _kinds_table(
                kinds, measured.end_reasons(runs, [run.engine for run in seen]), natural, sum(map(len, runs))
            ),
            _first_table(metrics),
            *((_class_table(classes, metrics),) if classes else ()),
        ),
        plots=_cdf(runs, classes),
        notes=(*_notes(kinds, metrics, option), Note.of("outside_draft", test="reasoning")),
    )


def _metrics(
    seen: Sequence[Observation], natural: Sequence[str], option: Option, seed: int
) -> dict[str, Estimate]:
    runs = [run.records for run in seen]
    metrics = _distributions("", runs, option)
    for family, measure in _FIRST.items():
        metrics |= distribution(family, [measure(run) for run in runs])
    for label, own in split_by_class(runs).items():
        metrics |= _distributions(f"[{label}]", own, option)
    metrics["think_share"] = measured.think_share(runs, seed=seed)
    engines = [run.engine for run in seen]
    metrics |= measured.budget_force_rate(runs, natural, engines=engines)
    metrics["critical_evictions"] = measured.critical_evictions(runs, engines)
    return metrics | rates(seen, seed=seed)


def _distributions(qualifier: str, runs: Sequence[Records], option: Option) -> dict[str, Estimate]:
    gone = [run.select(run.given_up) for run in runs]
    every = GivenUp.of_unknown(sum(map(len, gone)))
    thinking = GivenUp.of_unknown(sum(int(measured.reasoned(run).sum()) for run in gone))
    found = distribution(f"ttot{qualifier}", [latency.ttot_ms(run) for run in runs], given_up=thinking)
    found |= distribution(f"ttfo{qualifier}", [latency.ttfo_ms(run) for run in runs], given_up=every)
    gaps = [measured.output_itl_samples(run, option) for run in runs]
    found |= itl_distribution(gaps, family=f"output_itl{qualifier}")
    tokens = [measured.think_tokens(run) for run in runs]
    return found | distribution(f"think_tokens{qualifier}", tokens, unit="tokens", given_up=thinking)


_FIRST: dict[str, latency.Measure] = {
    "ttft": latency.ttft_ms,
    "ttft_any": latency.ttft_any_ms,
    "ttft_first_event": latency.ttft_first_event_ms,
    "ttft_reasoning": latency.ttft_reasoning_ms,
    "tpot": latency.tpot_ms,
    "e2e": latency.e2e_ms,
}


def _results(metrics: Mapping[str, Estimate], option: Option) -> Table:
    named: dict[str, str] = {}
    for family, title in _FAMILIES.items():
        title = "Output TBC" if family == "output_itl" and option == "A" else title
        named |= {f"{title} {name}": f"{family}.{statistic}" for statistic, name in _TAILS.items()}
    named |= {
        "Think tokens mean": "think_tokens.mean",
        "Think tokens P95": "think_tokens.p95",
        "Think share": "think_share",
    }
    forced = [name for name in metrics if name.startswith("budget_force_rate")]
    named |= {f"Budget-force rate{name.removeprefix('budget_force_rate')}": name for name in forced}
    named["Critical evictions"] = "critical_evictions"
    rows = zip(named, cells(metrics, named.values()), strict=True)
    return metric_table("reasoning_results", "Reasoning Results", rows)


def _kinds_table(
    kinds: measured.ReplyKinds, reasons: Counter[str], natural: Sequence[str], submitted: int
) -> Table:
    rows: list[Row] = [
        ("Requests", submitted),
        ("Requests that ended well", kinds.ok),
        ("… with reasoning", kinds.reasoned),
        ("… without reasoning, in no TTOT", kinds.ok - kinds.reasoned),
        ("… with reasoning that was counted but not streamed, in no TTOT", kinds.hidden),
        ("… with no end of thinking before the first visible content, in no TTOT", kinds.spoke_first),
        ("… whose last thought and first visible content came together", kinds.merged),
        ("… with reasoning after the first visible content too", kinds.interleaved),
        ("… without a count of think tokens", kinds.uncounted),
        ("Replies of reasoning alone, not among those that ended well", kinds.never_spoke),
    ]
    rows += [(f"Think tokens from {source}", count) for source, count in kinds.sources]
    rows += [
        (f"Reasoning ended: {reason}{'' if reason in natural else ' (forced)'}", count)
        for reason, count in reasons.most_common(measured.MOST_REASONS)
    ]
    others = sum(reasons.values()) - sum(count for _, count in reasons.most_common(measured.MOST_REASONS))
    if others:
        rows.append(("Reasoning ended: other reasons", others))
    return Table("reasoning_replies", "Replies by Their Reasoning", ("Replies", "Number"), tuple(rows))


def _first_table(metrics: Mapping[str, Estimate]) -> Table:
    """A table of the readings of "first token", so that figures can be matched with those of other tools."""
    titles = {
        "ttft_first_event": "first event of any kind",
        "ttft_any": "first output of any kind",
        "ttft_reasoning": "first reasoning",
        "ttft": "first visible content (TTFT of the draft, TTFO)",
    }
    rows: list[Row] = [
        (title, *cells(metrics, (f"{family}.{statistic}" for statistic in _TAILS)))
        for family, title in titles.items()
    ]
    columns = ("From submission to the", *_TAILS.values())
    return Table("reasoning_first_tokens", "First Token by Its Reading", columns, tuple(rows))


def _class_table(classes: Mapping[str, Sequence[Records]], metrics: Mapping[str, Estimate]) -> Table:
    shown = (("ttot", "p95"), ("ttfo", "p95"), ("output_itl", "p99"), ("think_tokens", "mean"))
    rows: list[Row] = []
    for label, runs in classes.items():
        found = cells(metrics, (f"{family}[{label}].{statistic}" for family, statistic in shown))
        rows.append((label, sum(map(len, runs)), metrics[f"ttot[{label}].p95"].n, *found))
    columns = ("Class", "Requests", "In TTOT", "TTOT P95", "TTFO P95", "Output ITL P99", "Think tokens mean")
    return Table("reasoning_by_class", "Classes of the Mix", columns, tuple(rows))


def _cdf(runs: Sequence[Records], classes: Mapping[str, Sequence[Records]]) -> tuple[Plot, ...]:
    samples = {
        label: np.concatenate([latency.ttot_ms(run) for run in own])
        for label, own in (classes or {"TTOT": runs}).items()
        if own
    }
    series = {label: ecdf(own) for label, own in samples.items() if len(own)}
    if not series:
        return ()
    return (
        Plot(
            id="ttot_cdf",
            title="Distribution of TTOT",
            x_label="TTOT (ms)",
            y_label="share of replies that reasoned",
            series={label: (tuple(x), tuple(y)) for label, (x, y) in series.items()},
            step=True,
        ),
    )


def _notes(kinds: measured.ReplyKinds, metrics: Mapping[str, Estimate], option: Option) -> tuple[Note, ...]:
    notes = []
    if metrics["ttot.p50"].point is None and kinds.ok:
        notes.append(Note.of("no_end_of_thinking"))
    if kinds.merged:
        notes.append(Note.of("merged_end_of_thinking", replies=kinds.merged))
    if kinds.never_spoke:
        notes.append(Note.of("reasoning_alone", replies=kinds.never_spoke))
    if option == "A":
        notes.append(Note.of("output_gaps_between_chunks"))
    for name in ("think_share", "critical_evictions"):
        if metrics[name].point is None:
            notes.append(Note.of("undefined_metric", metric=name, why=Figure(name, metrics[name]).text))
    return tuple(notes)


TEST = one_load_test(HEADING, Parameters, result)
