"""The guardrail overhead test (section 5.10)."""

from __future__ import annotations

from collections import defaultdict

from pytest_llmbench.compliance.checks.levels import Tested, tested, was_measured
from pytest_llmbench.compliance.checks.prefix_cache import unlike
from pytest_llmbench.compliance.checks.registry import Checks, figures
from pytest_llmbench.compliance.checks.workload import advised
from pytest_llmbench.compliance.evidence import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.metrics.differences import gained_throughput, unlike_configurations
from pytest_llmbench.model.draft import GUARDRAIL_PERCENTS
from pytest_llmbench.model.facts import GuardrailFact, LoadFact, WarmupFact, WorkloadFact
from pytest_llmbench.model.numbers import percent_label, percentage, trimmed
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import Records

check = Checks()

BASELINE, INPUT, OUTPUT, FULL = "baseline", "input_filter", "output_filter", "full"
CONFIGURATIONS = (BASELINE, INPUT, OUTPUT, FULL)
LEVEL_TOLERANCE = 2.0
MOST_REFUSED = 0.01
_STATISTICS = ("p50", "p95", "p99")
_ON, _OFF = ("enabled",), ("disabled", "absent")

check("S-5.10.2-workload")(advised("conversation"))


def _by_configuration(view: EvidenceView) -> dict[str, dict[float, Tested]]:
    """Levels by configuration and percentage of capacity."""
    found: dict[str, dict[float, Tested]] = defaultdict(dict)
    for one in tested(view, *CONFIGURATIONS):
        percent = one.level.percent_of_capacity
        if percent is None:
            raise NoEvidenceError(f"percent_of_capacity of {one.label}")
        found[one.level.role][percent] = one
    return dict(found)


@check("P-5.10.2-benign-content")
def benign(view: EvidenceView) -> Answer:
    """Random tokens and the advised conversations ask for nothing; of other content the tester says so. Then
    1 % is refused at most in every configuration."""
    known = view.fact(WorkloadFact.STANDARD) is True
    known = known or view.fact(WorkloadFact.CONTENT, {}).get("domain") == "random"
    if not known and view.need(GuardrailFact.BENIGN_CONTENT) is not True:
        return view.unmet("the content is not declared benign")
    shares = {one.label: one.refused_share() for one in tested(view, *CONFIGURATIONS)}
    view.note("refused_share", shares)
    worst = max(shares.values())
    return view.answer(
        worst <= MOST_REFUSED,
        f"benign, {percentage(worst)} refused at most",
        f"up to {percentage(worst)} of the requests were refused, 1 % is the limit",
    )


@check("P-5.10.2-configurations")
def configurations(view: EvidenceView) -> Answer:
    """Baseline and full; the single filters, or why they cannot be run. The variants had them so."""
    found = _by_configuration(view)
    lacking = [name for name in (BASELINE, FULL) if name not in found]
    single = [name for name in (INPUT, OUTPUT) if name not in found]
    reason = view.fact(GuardrailFact.IMPOSSIBLE)
    wrong = [one.label for levels in found.values() for one in levels.values() if not _switched(one)]
    view.note("configurations", list(found))
    by_percent: dict[float, dict[str, Records]] = defaultdict(dict)
    for name, levels in found.items():
        for percent, one in levels.items():
            by_percent[percent][name] = one.records
    unexplained = [each for records in by_percent.values() for each in unlike_configurations(records)]
    for told in (*unexplained, *gained_throughput(view.result.metrics)):
        if told is not None and not told.ok:
            return view.unmet(f"the configurations are different systems: {told}")
    return view.answer(
        not lacking and (not single or bool(reason)) and not wrong,
        f"{', '.join(found)}" + (f"; not {', '.join(single)}: {reason}" if single else ""),
        f"not run: {', '.join(lacking + single)}; filters not as the configuration says: {', '.join(wrong)}",
    )


def _switched(one: Tested) -> bool:
    """Whether the system stated the level's configuration at that time; silence states nothing."""
    wanted = {
        BASELINE: (False, False), INPUT: (True, False), OUTPUT: (False, True), FULL: (True, True),
    }[one.level.role]  # fmt: skip
    stated = (one.run.facts.value(key) for key in GuardrailFact.FILTERS.values())
    return all(state in (_ON if on else _OFF) for state, on in zip(stated, wanted, strict=True))


@check("P-5.10.2-load-levels")
def load_levels(view: EvidenceView) -> Answer:
    """25, 50 and 75 % in each configuration, at the same rates; the capacity is that of the baseline."""
    rate, found = view.need(LoadFact.CAPACITY_RPS), _by_configuration(view)
    for name, levels in found.items():
        for wanted in GUARDRAIL_PERCENTS:
            near = [one for percent, one in levels.items() if abs(percent - wanted) <= LEVEL_TOLERANCE]
            if not near:
                return view.unmet(f"{name} was not run at {trimmed(wanted)} % of capacity")
            base = found.get(BASELINE, {})
            same = [one for percent, one in base.items() if abs(percent - wanted) <= LEVEL_TOLERANCE]
            if not same or near[0].value != same[0].value:
                return view.unmet(f"{name} at {trimmed(wanted)} %: another rate than the baseline")
            if abs(near[0].value - rate * wanted / 100) > 0.03 * rate:
                own = f"{trimmed(near[0].value)} req/s"
                return view.unmet(f"{name}: {own} is not {trimmed(wanted)} % of {trimmed(rate)} req/s")
    if not was_measured(view, rate):
        return view.unmet(f"{trimmed(rate)} req/s is stated as the capacity, and nothing measured it")
    return view.met(f"25, 50 and 75 % of {trimmed(rate)} req/s in every configuration")


@check("P-5.10.3-sequence")
def sequence(view: EvidenceView) -> Answer:
    """Baseline first, each configuration in one piece with a warm-up of its own, requests of the same
    lengths."""
    found = _by_configuration(view)
    if next(iter(_in_time(found))) != BASELINE:
        return view.unmet(f"the order was {', '.join(_in_time(found))}")
    if len(_in_time(found)) > len(found):
        return view.unmet("the configurations were run in turns, not one after the other")
    warmups = view.need(WarmupFact.COUNT)
    if warmups < len(found):
        return view.unmet(f"{warmups} warm-ups for {len(found)} configurations")
    for name, levels in found.items():
        for percent, one in levels.items():
            base = found[BASELINE].get(percent)
            complaint = "no baseline" if base is None else _other_work(view, base.run, one.run)
            if complaint is not None:
                return view.unmet(f"{name} at {trimmed(percent)} %: {complaint}")
    return view.met("baseline first, a warm-up each, requests of the same lengths at the same instants")


def _other_work(view: EvidenceView, base: Observation, other: Observation) -> str | None:
    """What one configuration was given to do otherwise than the baseline; None for nothing. Words of its own
    are no other work where all have one list of lengths, of which each drew its prompts anew."""
    listed = base.plan.lengths_seed
    if listed is None or other.plan.lengths_seed != listed:
        return unlike(view, base, other)
    lengths = [
        {
            index: (inputs, limit)
            for index, inputs, limit in zip(
                run.records.index.tolist(),
                run.records.requested_input_tokens.tolist(),
                run.records.requested_max_tokens.tolist(),
                strict=True,
            )
        }
        for run in (base, other)
    ]
    if lengths[0] != lengths[1]:
        return "requests of other lengths"
    return unlike(view, base, other, words=False)


def _in_time(found: dict[str, dict[float, Tested]]) -> list[str]:
    """Configurations by the start of their levels, each named once per stretch."""
    starts = sorted((one.run.started_ns, name) for name, levels in found.items() for one in levels.values())
    names = [name for _, name in starts]
    return [name for place, name in enumerate(names) if place == 0 or names[place - 1] != name]


check("P-5.10.4-per-config")(
    figures(
        *(f"{family}[{{}}].{statistic}" for family in ("ttft", "e2e") for statistic in _STATISTICS),
        of_every=lambda view: [
            f"{name}@{percent_label(percent)}"
            for name, levels in _by_configuration(view).items()
            for percent in levels
        ],
    )
)


@check("P-5.10.4-overheads")
def overheads(view: EvidenceView) -> Answer:
    """Differences against the baseline, per percentile and level."""
    found = _by_configuration(view)
    view.need_metrics(
        f"{metric}[{percent_label(percent)}].{statistic}"
        for metric, name in (("input_filter_overhead", INPUT), ("guardrail_overhead", FULL))
        for percent in found.get(name, {})
        for statistic in _STATISTICS
    )
    if INPUT not in found and not view.fact(GuardrailFact.IMPOSSIBLE):
        return view.unmet("the overhead of the input filter is missing")
    return view.met("overheads of the input filter and of all guardrails, per percentile and level")


@check("P-5.10.4-throughput-reduction")
def throughput_reduction(view: EvidenceView) -> Answer:
    """Against the maximum of the baseline."""
    others = [name for name in _by_configuration(view) if name != BASELINE]
    view.need_metrics([f"max_output_token_throughput[{name}]" for name in (BASELINE, *others)])
    view.need_metrics([f"throughput_reduction[{name}]" for name in others])
    return view.met("throughput against the baseline")


@check("P-5.10.5-tables")
def latency_and_throughput(view: EvidenceView) -> Answer:
    levels = {percent for levels in _by_configuration(view).values() for percent in levels}
    made = view.table("guardrail_latency")
    view.table("guardrail_throughput")
    return view.answer(
        made >= len(levels), "latency and throughput", f"{made} latency tables for {len(levels)} load levels"
    )
