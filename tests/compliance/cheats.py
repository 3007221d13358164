"""Cheats: small variations of complying runs that would be worth less than they look, and what they deserve.

Each names the run it starts from, what is done to it, the best class it deserves, and a clause that has to be
found unmet. Who adds a clause adds the ways around it here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from complete_run import complete, some, vouched
from level_mutations import columns_of, with_levels
from mutations import (
    Mutation,
    stating,
    together,
    with_columns,
    with_field,
    with_published,
    with_result,
    with_run,
)
from replayed_runs import complete as measured_run
from situations import SITUATIONS, later_at_first

from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import ComplianceVerdict, Finding, Validity
from pytest_llmbench.model.observation import HostLimits
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.records import OUTCOMES, TOKEN_SOURCES
from pytest_llmbench.model.result import TestResult, WarmupReport
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

CUT = OUTCOMES.index(Outcome.CUT_BY_USER)
NOT_COMPLIANT, CONDITIONAL = ComplianceVerdict.NOT_COMPLIANT, ComplianceVerdict.CONDITIONAL


@dataclass(frozen=True)
class Cheat:
    name: str
    clause: str
    """Of the catalogue, that is not met by it."""
    run: Callable[[], Evidence]
    done: Mutation
    deserves: ComplianceVerdict = field(default=NOT_COMPLIANT)


def gateway(name: str, clause: str, done: Mutation, deserves: ComplianceVerdict = NOT_COMPLIANT) -> Cheat:
    """On a TTFT test of a gateway."""
    return Cheat(name, clause, SITUATIONS["gateway"], done, deserves)


def of(situation: str) -> Callable[[], Evidence]:
    return SITUATIONS[situation]


def of_test(test: str, **keywords: Any) -> Callable[[], Evidence]:
    return partial(measured_run, test, **keywords)


def nothing_done(evidence: Evidence) -> Evidence:
    return evidence


# What was asked for.


def body(**fields: Any) -> Mutation:
    return stating({"request.extra_body": fields})


def stated_of_run(role: str, place: int, **facts: Any) -> Mutation:
    """Facts of the variant that one level ran on."""

    def mutate(evidence: Evidence) -> Evidence:
        levels = [level for level in evidence.result.levels if level.role == role]
        at = levels[place].observation
        assert at is not None
        known = evidence.result.observations[at].facts
        stated = {key.replace("__", "."): value for key, value in facts.items()}
        kept = Facts({key: fact for key, fact in known.items() if key not in stated})
        return with_run(at, facts=kept | Facts.of(Origin.DECLARED, stated))(evidence)

    return mutate


def of_every_level(role: str, count: int, **facts: Any) -> Mutation:
    return together(*(stated_of_run(role, place, **facts) for place in range(count)))


def ended_by_length(tokens: int) -> Mutation:
    """Of one level of the guardrail test: all replies end at a limit that nobody asked for."""
    return columns_of(
        "full",
        0,
        output_tokens=lambda column: np.full_like(column, tokens),
        finish_reason=lambda column: ["length"] * len(column),
    )


BODIES = (
    gateway("stop sequences in the request body", "M-4.3.1-output-length-spec", body(stop=["\n"])),
    gateway("a shorter limit by another name", "M-4.3.1-output-length-spec", body(max_completion_tokens=8)),
    gateway(
        "a shorter limit in a nested field",
        "M-4.3.1-output-length-spec",
        body(sampling_params={"max_new_tokens": 8}),
    ),
    gateway("a stop token", "M-4.3.1-output-length-spec", body(stop_token_ids=[13])),
    gateway("a grammar of one word", "M-4.3.1-output-length-spec", body(guided_choice=["yes"])),
    gateway("prompts cut by the server", "M-4.3.1-input-length-spec", body(truncate_prompt_tokens=16)),
    gateway("another temperature", "P-A.1-synthetic-uniform-params", body(temperature=1.5)),
    *(
        gateway(f"{name} of {value}", "M-4.3.1-output-length-spec", body(**{name: value}))
        for name, value in {
            "stop_words_list": [[13]],
            "stopSequences": ["."],
            "eos_token_id": 13,
            "end_id": 13,
            "t_max_predict_ms": 50,
            "max_time": 0.1,
            "timeout": 0.1,
            "generation_config": {"maxNewTokens": 8},
            "thinking": {"type": "enabled", "budget_tokens": 64},
            "reasoning": {"effort": "low"},
        }.items()
    ),
    gateway("a penalty for repetition", "P-A.1-synthetic-uniform-params", body(repeat_penalty=1.8)),
    gateway("beam search", "P-A.1-synthetic-uniform-params", body(best_of=4)),
    gateway(
        "replies held to a limit of the server's",
        "M-4.3.1-output-length-spec",
        with_columns(finish_reason=lambda column: ["length"] * len(column)),
    ),
    gateway(
        "the same under the name of another API",
        "M-4.3.1-output-length-spec",
        with_columns(finish_reason=lambda column: ["max_output_tokens"] * len(column)),
    ),
    Cheat(
        "a custom workload with another temperature",
        "M-4.3-custom-fully-specified",
        of("engine_custom_workload"),
        body(temperature=1.5),
    ),
    gateway(
        "slow requests called cut",
        "M-4.3.3-deterministic-seed",
        with_columns(outcome=lambda column: np.where(np.arange(len(column)) < 20, CUT, column)),
    ),
    gateway(
        "slow requests called cut, with a time",
        "M-4.3.3-deterministic-seed",
        with_columns(
            outcome=lambda column: np.where(np.arange(len(column)) < 20, CUT, column),
            cut_after_ns=lambda column: np.where(np.arange(len(column)) < 20, 10**8, column),
        ),
    ),
    Cheat(
        "filters with a shorter limit",
        "P-5.10.3-sequence",
        of_test("guardrail"),
        of_every_level("full", 3, request__variant_body={"max_tokens": 8}),
    ),
    Cheat(
        "filters behind a server with a shorter limit",
        "M-4.3.1-output-length-spec",
        of_test("guardrail"),
        ended_by_length(4),
    ),
    Cheat(
        "a warm cache asked for less",
        "P-5.7.3-identical-workload",
        of_test("prefix_cache"),
        stated_of_run("warm", 0, request__variant_body={"stop": ["\n"]}),
    ),
    Cheat(
        "a baseline with its filters on",
        "P-5.10.2-configurations",
        of_test("guardrail"),
        of_every_level("baseline", 3, guardrails__input_filter="enabled"),
    ),
    Cheat(
        "a full configuration that states no filter",
        "P-5.10.2-configurations",
        of_test("guardrail"),
        of_every_level("full", 3, guardrails__input_filter=None, guardrails__output_filter=None),
    ),
    Cheat(
        "filters in an unknown state",
        "P-5.10.2-configurations",
        of_test("guardrail"),
        of_every_level("baseline", 3, guardrails__output_filter="unknown"),
    ),
)

# Siblings.


def beside(*siblings: Callable[[], TestResult]) -> Mutation:
    return lambda evidence: dataclasses.replace(evidence, siblings=tuple(make() for make in siblings))


def audited_alone(evidence: Evidence) -> TestResult:
    """As a session judges a result."""
    from pytest_llmbench.compliance.audit import audit

    return dataclasses.replace(evidence.result, compliance=audit(evidence))


def of_one_request(evidence: Evidence, **facts: Any) -> TestResult:
    """A test with the same SUT, of a single request."""
    stated = {key.replace("__", "."): value for key, value in facts.items()}
    small = complete(requests=1).result
    own = evidence.result.facts.under("sut")
    kept = Facts({key: fact for key, fact in small.facts.items() if not key.startswith("sut.")})
    result = dataclasses.replace(small, facts=kept | own | Facts.of(Origin.DECLARED, stated))
    return audited_alone(Evidence(result.test, result))


def with_sibling_of_one_request(**facts: Any) -> Mutation:
    return lambda evidence: dataclasses.replace(evidence, siblings=(of_one_request(evidence, **facts),))


def void_siblings(evidence: Evidence) -> Evidence:
    void = Validity((Finding.of("send_lag"),))
    siblings = tuple(dataclasses.replace(sibling, validity=void) for sibling in evidence.siblings)
    return dataclasses.replace(evidence, siblings=siblings)


def capacity_of_one(evidence: Evidence) -> TestResult:
    """A capacity test whose only level is its upper bound, one request in flight."""
    base = measured_run("capacity").result
    name = evidence.result.facts.value("workload.name")
    own = evidence.result.facts.under("sut") | Facts.of(Origin.DECLARED, {"workload.name": name})
    kept = Facts({key: fact for key, fact in base.facts.items() if not key.startswith("sut.")})
    levels = tuple(dataclasses.replace(level, passed=True, concurrency=1) for level in base.levels[:1])
    stated = dataclasses.replace(
        base.metrics["max_concurrency"], point=1.0, lower=None, upper=None, reason=Reason.RANGE_ENDED
    )
    metrics = {**base.metrics, "max_concurrency": stated}
    return vouched(dataclasses.replace(base, facts=kept | own, levels=levels, metrics=metrics))


def resting_on_one(evidence: Evidence) -> Evidence:
    levels = tuple(level for level in evidence.result.levels if level.role != "probe")
    changed = together(with_result(levels=levels), stating({"load.capacity_concurrency": 1}))(evidence)
    runs = list(changed.result.observations)
    for level in levels:
        if level.observation is not None and level.percent_of_capacity is not None:
            at = level.observation
            slots = int(np.ceil(level.percent_of_capacity / 100))
            load = dataclasses.replace(runs[at].plan.load, concurrency=slots)
            runs[at] = dataclasses.replace(runs[at], plan=runs[at].plan.with_(load=load))
    changed = with_result(observations=tuple(runs))(changed)
    return dataclasses.replace(changed, siblings=(*evidence.siblings, capacity_of_one(evidence)))


SIBLINGS = (
    Cheat(
        "the required workload once, beside another",
        "M-4.3.2.1-synthetic-uniform-for-engine",
        of("engine_custom_workload"),
        with_sibling_of_one_request(),
    ),
    Cheat(
        "one Poisson request beside bursts",
        "M-5.1.2.2-poisson-required",
        of("bursty"),
        with_sibling_of_one_request(),
    ),
    Cheat(
        "one conversation beside random tokens",
        "S-4.3.2.3-conversation-for-gateway",
        of("gateway"),
        with_sibling_of_one_request(workload__name="conversation"),
        CONDITIONAL,
    ),
    Cheat("a void Poisson run", "M-5.1.2.2-poisson-required", of("bursty"), void_siblings),
    Cheat(
        "a void run of the required workload",
        "M-4.3.2.1-synthetic-uniform-for-engine",
        of("engine_custom_workload"),
        void_siblings,
    ),
    Cheat(
        "a capacity of one, found by looking no further",
        "P-5.8.3-capacity-first",
        of_test("memory_pressure"),
        resting_on_one,
    ),
    Cheat(
        "a search whose bound is its capacity",
        "P-5.8.3-capacity-first",
        of_test("memory_pressure"),
        with_levels("probe", passed=True),
    ),
)

# Capacities.

CAPACITIES = (
    Cheat(
        "a sweep of a capacity that was made up",
        "P-5.3.3-capacity-estimate",
        of_test("tradeoff", capacity_rps=0.4),
        nothing_done,
    ),
    Cheat(
        "levels beyond capacity that do not saturate",
        "P-5.3.2-span-to-saturation",
        of_test("tradeoff"),
        with_levels("level", saturated=False),
    ),
    Cheat(
        "shares of a maximum that was made up",
        "P-5.4.2-load-as-percentage",
        of_test("itl", capacity_rps=1.2),
        nothing_done,
    ),
    Cheat(
        "a mix at 80 % of a figure that was made up",
        "S-5.6.2-load-70-90",
        of_test("fairness", capacity_rps=0.8),
        nothing_done,
        CONDITIONAL,
    ),
    Cheat(
        "guardrails at shares of a figure that was made up",
        "P-5.10.2-load-levels",
        of_test("guardrail", capacity_rps=1.0),
        nothing_done,
    ),
    Cheat(
        "a maximum from a range that ended before it",
        "P-5.2.3-binary-search",
        of_test("throughput", max_rate=1.5),
        nothing_done,
    ),
    Cheat(
        "a capacity search between one and one",
        "P-5.5.2-search-bounds",
        of_test("capacity", initial=1, maximum=1),
        nothing_done,
    ),
    Cheat(
        "a search in which nothing saturated",
        "P-5.4.2-load-as-percentage",
        of_test("itl"),
        with_levels("probe", saturated=False),
    ),
)

# The state of the system.


def unwarmed(evidence: Evidence) -> Evidence:
    """``WarmupPolicy.cold()`` on a system that is warm."""
    facts = ("requests_ok", "output_tokens", "drained", "probe_before_ms", "probes_after_ms")
    return together(
        stating({"cold_start": True, "warmup.performed": False} | {f"warmup.{name}": None for name in facts}),
        with_result(title=f"{evidence.result.title} (cold start)", warmup=WarmupReport()),
    )(evidence)


def first_reply_slow(evidence: Evidence) -> Evidence:
    """A cold throughput test, which is none of the cold start's latency."""
    run = max(range(len(evidence.runs)), key=lambda place: len(evidence.runs[place].records))
    return with_columns(run, first_content_ns=later_at_first(60_000_000_000))(unwarmed(evidence))


def held_back(share: float) -> Mutation:
    """So many replies arrive in one piece, at their end: the largest run, its instants alone."""

    def mutate(evidence: Evidence) -> Evidence:
        records = max((run.records for run in evidence.runs), key=len)
        held = np.arange(len(records)) % 100 < 100 * share
        owner = np.repeat(np.arange(len(records)), np.diff(records.chunk_offsets))
        ends = records.last_content_ns

        def at_the_end(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.where(held, ends, column)

        return with_columns(
            first_content_ns=at_the_end,
            chunk_ns=lambda column: np.where(held[owner], ends[owner], column),
        )(evidence)

    return mutate


SYSTEM = (
    gateway(
        "declared loaded, and loaded again while measuring",
        "M-4.5.1-model-loaded",
        with_columns(model_load_ns=some(4_000_000_000)),
    ),
    gateway("called cold, and warm", "M-4.5.1-warmup-volume", unwarmed),
    Cheat("a throughput without warm-up", "M-4.5.1-warmup-volume", of_test("throughput"), unwarmed),
    Cheat("a cold throughput", "M-4.5.1-warmup-volume", of_test("throughput"), first_reply_slow),
    Cheat(
        "a context that is not long",
        "P-5.9.2-length-sequence",
        of_test("long_context", lengths=(200, 210, 220)),
        nothing_done,
    ),
    Cheat(
        "three lengths that are nearly one",
        "P-5.9.2-length-sequence",
        of_test("long_context", lengths=(16_000, 16_100, 16_200)),
        nothing_done,
    ),
    Cheat(
        "nearly half of the stream held back",
        "M-4.2.2-per-chunk-arrival",
        of_test("capacity"),
        held_back(0.45),
    ),
    Cheat(
        "a tenth of the stream held back", "M-4.2.2-per-chunk-arrival", of_test("capacity"), held_back(0.10)
    ),
    gateway(
        "a network adjustment that nothing applies",
        "M-4.7.3-adjustment-documented",
        stating({"network.ttft_adjustment": {"applied": True, "amount_ms": 50.0, "method": "guess"}}),
    ),
    Cheat(
        "a network adjustment by another amount",
        "M-4.7.3-adjustment-documented",
        of("network_time_subtracted"),
        with_field("network.ttft_adjustment", "amount_ms", 0.1),
    ),
)

# What was declared.


def counted_by(source: TokenSource) -> Mutation:
    return with_columns(token_source=lambda column: np.full_like(column, TOKEN_SOURCES.index(source)))


DECLARED = (
    gateway("another vocabulary", "M-4.4.1-vocab-size", stating({"tokenizer.vocab_size": 32_000})),
    gateway(
        "another model",
        "M-5.1.2.3-model-identifier",
        stating({"endpoint.models": ["qwen2.5-0.5b-instruct"]}),
    ),
    gateway(
        "one machine, eight milliseconds away",
        "M-4.7.2-sync-10ms",
        stating(
            {
                "clock.topology": "single_machine",
                "clock.method": None,
                "clock.accuracy_ms": None,
                "network.rtt_ms": {"p50": 8.0, "n": 11},
            }
        ),
    ),
    gateway(
        "counts of a reference that did not count",
        "M-4.4.2-counting-option",
        stating({"tokenizer.name": "llama-3", "tokenizer.vocab_size": 128_256}),
    ),
    gateway(
        "counts of the system's tokenizer that were made here",
        "M-4.4.2-counting-option",
        together(
            stating(
                {
                    "tokenizer.counting_option": "A",
                    "tokenizer.name": "llama-3",
                    "tokenizer.vocab_size": 128_256,
                }
            ),
            counted_by(TokenSource.REFERENCE_TOKENIZER),
        ),
    ),
    gateway(
        "counts of a reference, made by the file of another tokenizer",
        "M-4.4.2-counting-option",
        together(
            stating(
                {
                    "tokenizer.counting_option": "B",
                    "tokenizer.reference": "cl100k_base",
                    "tokenizer.name": "llama-3",
                    "tokenizer.vocab_size": 128_256,
                }
            ),
            counted_by(TokenSource.TOKENIZER_FILE),
        ),
    ),
    gateway(
        "counts by a tokenizer's file of bytes",
        "M-4.4.2-counting-option",
        together(
            stating({"tokenizer.counting_option": "A", "tokenizer.tokens_per_reference": 3.4}),
            counted_by(TokenSource.TOKENIZER_FILE),
        ),
    ),
    gateway(
        "output tokens that nobody received",
        "M-4.4.2-counting-option",
        with_columns(unshown_tokens=lambda column: column * 0 + 10),
    ),
    gateway(
        "more output tokens than were asked for",
        "M-4.4.2-counting-option",
        with_columns(output_tokens=lambda column: column * 0 + 100_000),
    ),
    gateway(
        "prompts of which the server reads a quarter",
        "M-4.3.1-input-length-spec",
        with_columns(input_tokens=lambda column: column // 4),
    ),
    Cheat(
        "three conversations as ShareGPT",
        "P-A.3-conversation-params",
        of("conversation"),
        together(
            with_field("workload.dataset", "file_sha256", "0" * 64),
            with_field("workload.input_length", "params", {"entries": 3}),
        ),
    ),
    Cheat(
        "ShareGPT by name alone",
        "S-4.3.3-publish-sequences",
        of("conversation"),
        with_field("workload.dataset", "file_sha256", "0" * 64),
        CONDITIONAL,
    ),
    Cheat(
        "The Stack by name alone",
        "S-4.3.3-publish-sequences",
        of("code_completion"),
        with_published({"The Stack": frozenset()}),
        CONDITIONAL,
    ),
    Cheat(
        "the advised conversations by name alone",
        "S-5.10.2-workload",
        of_test("guardrail"),
        with_published({"ShareGPT": frozenset()}),
        CONDITIONAL,
    ),
    Cheat(
        "content of unknown harm",
        "P-5.10.2-benign-content",
        of_test("guardrail"),
        stating({"workload.standard": False, "workload.name": "our questions", "workload.benign": True}),
    ),
    Cheat(
        "a cache called off that answers",
        "M-5.1.2.3-prefix-caching",
        of("gateway"),
        together(
            stating({"sut.prefix_caching": "disabled"}),
            with_columns(cached_tokens=lambda column: np.full_like(column, 100)),
        ),
    ),
)


# Where the boundary lies.

ONE_TOKEN = SyntheticWorkload("one-token", Fixed(1), Fixed(160))


def one_token() -> Evidence:
    return complete(workload=ONE_TOKEN)


BOUNDARIES = (
    *(
        Cheat(
            f"a workload of one token at the boundary {boundary}",
            "S-4.3.2.3-conversation-for-gateway",
            one_token,
            stating({"sut.boundary": boundary}),
            CONDITIONAL,
        )
        for boundary in ("application_gateway", "compound_system", "custom")
    ),
    gateway(
        "a compound system with safety systems off and no word of it",
        "M-4.8.2-disabled-noted",
        stating({"sut.boundary": "compound_system", "guardrails.input_filter": "disabled"}),
    ),
    gateway(
        "safety systems of a compound system as no user has them",
        "S-4.8.2-default-enabled",
        stating({"sut.boundary": "compound_system", "guardrails.default_config": False}),
        CONDITIONAL,
    ),
    gateway(
        "hardware that a boundary of one's own hides",
        "M-5.1.2.3-hardware",
        stating({"sut.boundary": "custom", "sut.hardware.disclosed": False}),
    ),
    Cheat(
        "prompts without a common prefix that come from a cache",
        "M-4.3.1-prefix-sharing-spec",
        one_token,
        together(
            stating({"sut.boundary": "compound_system"}),
            with_columns(cached_tokens=lambda column: np.ones_like(column)),
        ),
    ),
    gateway(
        "a few prompts, called drawn, that come from a cache",
        "M-4.3.1-prefix-sharing-spec",
        with_columns(cached_tokens=lambda column: np.full_like(column, 120)),
    ),
)

# What this machine is held to.

LOOSER = {
    "send_lag_ns": 10**18,
    "rate_share": 0.9,
    "latency_ms": 3.0,
    "empty_slot_share": 0.06,
    "buffered_share": 1.0,
}
LIMITS = (
    *(
        gateway(
            f"a looser {name}", "M-4.2.5-request-isolation", with_run(host_limits=HostLimits(**{name: limit}))
        )
        for name, limit in LOOSER.items()
    ),
    gateway(
        "a limit that is no number",
        "M-4.2.5-request-isolation",
        with_run(host_limits=HostLimits(latency_ms=float("nan"))),
    ),
    Cheat(
        "slots that may stand empty in one level",
        "M-4.2.4-closed-loop",
        of_test("capacity"),
        with_run(0, host_limits=HostLimits(empty_slot_share=1.0)),
    ),
)

CHEATS = (*BODIES, *SIBLINGS, *CAPACITIES, *SYSTEM, *DECLARED, *BOUNDARIES, *LIMITS)
