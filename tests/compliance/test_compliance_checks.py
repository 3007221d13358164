"""Single predicates: the cases that a complete run and one mutation each do not show."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from complete_run import CONCURRENCY, FAILED, REQUESTS, SEED, complete, some, vouched
from mutations import (
    Mutation,
    alone,
    assert_unconditional,
    restated,
    stating,
    status,
    together,
    unmet,
    with_columns,
    with_field,
    with_metric,
    with_result,
    with_run,
    without,
)
from replayed_runs import complete as measured_run
from search_rows import SEVERAL
from situations import CUSTOM, SITUATIONS, engine_over_sse

from pytest_llmbench.compliance.audit import audit
from pytest_llmbench.compliance.evidence import Evidence, in_flight_peak, reported
from pytest_llmbench.model.judgement import Status
from pytest_llmbench.model.observation import HostLimits
from pytest_llmbench.model.plan import ClosedLoop
from pytest_llmbench.model.record import TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES
from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.model.result import Table, WarmupReport
from pytest_llmbench.workloads.sequence import sequence_sha256
from pytest_llmbench.workloads.stream import part_seed
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM


def gateway(*mutations: Mutation) -> Evidence:
    return together(*mutations)(SITUATIONS["gateway"]())


MET, UNMET, NOT_APPLICABLE = Status.MET, Status.UNMET, Status.NOT_APPLICABLE
BY_FILE = with_columns(
    token_source=lambda column: np.full_like(column, TOKEN_SOURCES.index(TokenSource.TOKENIZER_FILE))
)
OWN_TOKENIZER = {"tokenizer.counting_option": "A", "tokenizer.name": "x", "tokenizer.vocab_size": 700}
UNKNOWN_CHUNKS = with_columns(chunk_tokens=lambda tokens: np.full_like(tokens, MISSING))
EMPIRICAL = with_field("workload.input_length", "type", "empirical")
NO_FILTERS = {"guardrails.input_filter": "absent", "guardrails.output_filter": "absent"}
EQUAL_LENGTHS = together(with_columns(input_tokens=lambda tokens: np.full_like(tokens, 320)), restated)
EARLY_CONTENT = with_columns(first_content_ns=lambda at: at - 18_000)


def on_a_grid_of(grid_ns: int) -> Mutation:
    return with_columns(
        submitted_ns=lambda at: at // grid_ns * grid_ns, first_content_ns=lambda at: at // grid_ns * grid_ns
    )


def in_one_chunk(evidence: Evidence) -> Evidence:
    """Every reply arrives at once, at the instant of its first content."""
    records = evidence.records
    return with_columns(
        chunk_offsets=lambda _: np.arange(REQUESTS + 1),
        chunk_ns=lambda _: records.first_content_ns.copy(),
        chunk_tokens=lambda _: records.output_tokens.copy(),
        last_content_ns=lambda _: records.first_content_ns.copy(),
    )(evidence)


ONE_TOKEN_EACH = together(in_one_chunk, with_columns(output_tokens=lambda tokens: np.ones_like(tokens)))
OTHER_SHA256 = "0" * 64
AT_THE_GATEWAY: dict[str, list[tuple[Status, str, Mutation]]] = {
    "M-4.1-sut-boundary-declared": [
        (MET, "", stating({"sut.boundary": "custom"})),
        (UNMET, "", stating({"sut.boundary": "custom", "sut.components": None})),
        (UNMET, "", stating({"sut.boundary": "my_gateway"})),
        (MET, "", stating({"sut.boundary": "compound_system"})),
        (UNMET, "", stating({"manifest.sha256": None})),
    ],
    "M-5.1.2.3-hardware": [
        (
            MET,
            "",
            together(
                without("sut.hardware.accelerator_count", "sut.hardware.accelerator_memory_gib"),
                stating({"sut.hardware.accelerator_type": "cpu"}),
            ),
        ),
        (UNMET, "", stating({"sut.hardware.accelerator_count": 0})),
    ],
    "M-4.3.1-content-spec": [
        (MET, "without a system prompt", together()),
        (
            MET,
            "with a system prompt of typically 200 tokens",
            with_field("workload.content", "system_prompt", {"present": True, "typical_tokens": 200}),
        ),
    ],
    "S-4.8.2-default-enabled": [
        (MET, "the safety systems run as delivered", together()),
        (
            UNMET,
            "do not run as delivered (guardrails.default_config)",
            stating({"guardrails.default_config": False}),
        ),
    ],
    "M-5.1.2.3-prefix-caching": [
        (
            UNMET,
            "cached tokens for 3 requests",
            together(stating({"sut.prefix_caching": "disabled"}), with_columns(cached_tokens=some(64))),
        ),
    ],
    "M-4.3.3-deterministic-seed": [
        (UNMET, "gives another sequence", stating({"workload.sequence_sha256": OTHER_SHA256})),
    ],
    "P-A.1-synthetic-uniform-params": [
        (UNMET, "gives another sequence", stating({"workload.sequence_sha256": OTHER_SHA256})),
        (UNMET, "are not those of seed 42", with_run(sequence_sha256=OTHER_SHA256)),
        (UNMET, "no evidence: sequence_sha256 of the run", with_run(sequence_sha256="")),
        (UNMET, "planned input lengths 127", with_columns(requested_input_tokens=some(127))),
        (UNMET, "planned output lengths", with_columns(requested_max_tokens=some(257))),
        (
            UNMET,
            "no evidence: record.requested_max_tokens",
            with_columns(requested_max_tokens=some(MISSING)),
        ),
        (UNMET, "stop sequences", stating({"workload.stop": ["\n"]})),
        (UNMET, "prefix sharing", with_field("workload.prefix_sharing", "fraction", 0.5)),
        (UNMET, "no evidence: workload.prefix_sharing", stating({"workload.prefix_sharing": {}})),
    ],
    "P-A.2-synthetic-skewed-params": [
        (UNMET, "another sequence", stating({"workload.name": "synthetic-skewed"})),
    ],
    "M-4.3.3-dataset-version": [
        (NOT_APPLICABLE, "", together(stating({"workload.name": "long-context"}), EMPIRICAL)),
        (UNMET, "", together(stating({"workload.standard": False, "workload.name": "ours"}), EMPIRICAL)),
    ],
    "M-4.4.2-counting-option": [
        (MET, "", together(stating(OWN_TOKENIZER), BY_FILE)),
        (
            MET,
            "",
            together(
                stating(OWN_TOKENIZER | {"tokenizer.counting_option": "B", "tokenizer.reference": "x"}),
                BY_FILE,
            ),
        ),
    ],
    "M-4.5.1-model-loaded": [
        (UNMET, "", stating({"warmup.probes_after_ms": [1200.0, 100.0, 101.0, 100.0]})),
        (MET, "", with_columns(model_load_ns=some(5_000_000))),
        (UNMET, "", with_columns(model_load_ns=some(4_000_000_000))),
    ],
    "S-4.5.2-stabilised": [
        (MET, "", stating({"warmup.probes_after_ms": [1200.0, 100.0, 101.0, 100.0]})),
        (UNMET, "", stating({"warmup.probes_after_ms": [100.0, 100.0]})),
        (UNMET, "", stating({"warmup.probes_after_ms": [100.0, None, 100.0]})),
        (UNMET, "", stating({"warmup.probes_after_ms": [100.0, 111.0, 111.0]})),
    ],
    "M-4.2.2-per-chunk-arrival": [
        (UNMET, "", with_columns(last_content_ns=lambda at: at - 1)),
        (UNMET, "not a stream", in_one_chunk),
        (MET, "", ONE_TOKEN_EACH),
    ],
    "M-4.2.5-request-isolation": [
        (
            UNMET,
            "grew",
            with_columns(scheduled_ns=lambda at: at - np.linspace(0, 4e6, REQUESTS).astype(np.int64)),
        ),
        (
            UNMET,
            "no evidence: record.scheduled_ns, record.dispatched_ns",
            with_columns(scheduled_ns=lambda at: np.full_like(at, MISSING)),
        ),
    ],
    "M-4.2.6-record-output-count": [
        (UNMET, "10 of ", with_columns(output_tokens=some(MISSING, FAILED))),
    ],
    "M-4.2.6-record-subsequent-tokens": [
        (UNMET, "1 of ", with_columns(chunk_tokens=some(MISSING, slice(400, 404)))),
        (NOT_APPLICABLE, "", ONE_TOKEN_EACH),
    ],
    "M-4.7.4-timestamp-precision": [
        (MET, "", on_a_grid_of(1_000_000)),
        (UNMET, "", on_a_grid_of(10_000_000)),
    ],
    "P-B.1.1-submit-point": [
        (UNMET, "", with_columns(submitted_ns=lambda at: at + 10_000_000_000)),
    ],
    "P-B.1.1-first-point": [(UNMET, "", EARLY_CONTENT)],
    "P-5.1.3.1-first-content-token": [(UNMET, "", EARLY_CONTENT)],
    "M-4.6.2-chunk-granularity": [
        (UNMET, "", with_columns(chunk_tokens=some(2, slice(400, 401)))),
        (UNMET, "", UNKNOWN_CHUNKS),
        (MET, "", together(UNKNOWN_CHUNKS, stating({"streaming.chunking": "multi"}))),
    ],
    "M-4.8.1-system-names": [
        (NOT_APPLICABLE, "", stating({"guardrails.systems": "not known"})),
        (NOT_APPLICABLE, "", together(stating(NO_FILTERS), without("guardrails.systems"))),
    ],
    "S-4.7.3-rtt-reported": [
        (MET, "", stating({"network.significant": None, "network.rtt_ms": {"p50": 2.0, "n": 11}})),
        (
            NOT_APPLICABLE,
            "",
            stating({"network.significant": None, "network.rtt_ms": {"p50": 0.2, "n": 11}}),
        ),
        (UNMET, "", stating({"network.significant": None, "network.rtt_ms": None})),
        (NOT_APPLICABLE, "", stating({"network.significant": None, "clock.topology": "single_machine"})),
    ],
    "P-B.1.3-server-points": [(UNMET, "", stating({"timing.server_side": ["ttft"]}))],
    "P-5.1.4.2-by-input-length": [(NOT_APPLICABLE, "", EQUAL_LENGTHS)],
    "S-5.1.4.2-buckets": [(NOT_APPLICABLE, "", EQUAL_LENGTHS)],
    "M-5.1.5.3-input-length-table": [(NOT_APPLICABLE, "", EQUAL_LENGTHS)],
    "S-7.2-vary-workloads": [(MET, "", together()), (UNMET, "", alone)],
}
"""Entry → its status, with a part of the reason, after each of these changes of a complete run."""


@pytest.mark.parametrize("entry", AT_THE_GATEWAY)
def test_what_one_change_makes_of_an_entry(entry: str) -> None:
    for expected, reason, change in AT_THE_GATEWAY[entry]:
        found = status(entry, gateway(change))
        assert found.status is expected, found.reason
        assert f" {reason}" in f" {found.reason}"  # as whole words: 10 is not 110


# The system under test.


@pytest.mark.parametrize(
    "undisclosed", [{"sut.hardware.disclosed": False}, {"sut.hardware.accelerator_type": "undisclosed"}]
)
def test_undisclosed_hardware_is_accepted_outside_the_engine_boundary(undisclosed: dict[str, object]) -> None:
    accepted = status("M-5.1.2.3-hardware", gateway(stating(undisclosed)))
    assert accepted.status is Status.MET
    assert accepted.evidence["deviation"] == "hardware undisclosed"
    assert status("M-5.1.2.3-hardware", stating(undisclosed)(engine_over_sse())).status is Status.UNMET


# Workload and sequence.


def in_a_part(name: str, seed: int) -> Evidence:
    """The same test with the requests of a part that has a seed of its own."""
    whole = SITUATIONS["gateway"]()
    (run,) = whole.result.observations
    drawn = SYNTHETIC_UNIFORM.requests(REQUESTS, seed)
    digest = sequence_sha256(drawn)
    lengths = {"requested_input_tokens": [request.input_tokens for request in drawn]}
    limits = {"requested_max_tokens": [request.max_tokens for request in drawn]}
    columns = {column: np.array(values) for column, values in (lengths | limits).items()}
    of_part = dataclasses.replace(
        run,
        plan=run.plan.with_(seed=seed, part=name),
        records=dataclasses.replace(run.records, **columns),
        sequence_sha256=digest,
    )
    facts = {
        "workload.sequence_sha256": digest,
        "workload.slices": [[0, REQUESTS]],
        "workload.parts": [[name, seed]],
    }
    return with_result(observations=(of_part,))(stating(facts)(whole))


def test_the_requests_of_a_part_are_drawn_again_with_its_seed() -> None:
    name = "load 01234567"
    good = status("M-4.3.3-deterministic-seed", in_a_part(name, part_seed(SEED, name)))
    assert good.status is Status.MET, good.reason
    chosen = status("M-4.3.3-deterministic-seed", in_a_part(name, 7))
    assert chosen.status is Status.UNMET
    assert "does not follow from seed" in chosen.reason


def split_in_two(evidence: Evidence) -> Evidence:
    """The same requests as two runs, one after another in the sequence."""
    (run,) = evidence.result.observations
    half = REQUESTS // 2
    runs = [
        dataclasses.replace(
            run,
            plan=run.plan.with_(requests=half, first=first),
            records=run.records.select((run.records.index >= first) & (run.records.index < first + half)),
            sequence_sha256=sequence_sha256(SYNTHETIC_UNIFORM.requests(first + half, SEED)[first:]),
        )
        for first in (0, half)
    ]
    return with_result(observations=tuple(runs))(evidence)


def test_several_runs_share_one_sequence() -> None:
    assert_unconditional(audit(split_in_two(SITUATIONS["gateway"]())))


@pytest.mark.parametrize(("vocabulary", "template"), [(1.0, 40), (1.12, 40), (0.88, 0)])
def test_a_template_or_another_vocabulary_makes_no_other_lengths(vocabulary: float, template: int) -> None:
    """Every model has one; the lengths are those that the workload's tokenizer gives the prompts."""
    counted = with_columns(input_tokens=lambda own: np.rint(own * vocabulary).astype(np.int64) + template)
    entry = "P-A.5-long-context-params"
    assert status(entry, counted(SITUATIONS["long_context"]())).status is Status.MET


def test_prompts_of_exact_lengths_are_held_to_the_count_of_the_server() -> None:
    @dataclasses.dataclass(frozen=True)
    class Exact:
        base: Workload
        name = "long-context"
        standard = True

        def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
            return self.base.requests(count, seed)

        def specification(self) -> Mapping[str, Any]:
            told = self.base.specification()
            return {**told, "input_length": {**told["input_length"], "exact": True}}

    evidence = SITUATIONS["long_context"]()
    (run,) = evidence.runs
    exact = with_run(plan=run.plan.with_(workload=Exact(run.plan.workload)))
    longer = with_columns(input_tokens=lambda own: own + 200)
    entry = "P-A.5-long-context-params"
    assert status(entry, exact(evidence)).status is Status.MET
    found = status(entry, together(exact, longer)(evidence))
    assert found.status is Status.UNMET
    assert "prompts miss the exact requested length" in found.reason
    # Who counted a reply counted its prompt: our own count of a text says nothing of the server's.
    ours = TOKEN_SOURCES.index(TokenSource.REFERENCE_TOKENIZER)
    counted_here = with_columns(token_source=lambda column: column * 0 + ours)
    assert status(entry, together(exact, longer, counted_here)(evidence)).status is Status.MET


@pytest.mark.parametrize(
    ("context", "lengths", "omitted", "met"),
    [
        (2_048, (256, 512, 1024, 1700), [], True),
        (4_096, (512, 1024, 2048), [4096], True),
        (8_192, (1024, 2048, 4096), [8192, 16384, 32768, 65536, 131072], True),
        (8_192, (1024, 2048, 4096), [], False),
        (65_536, (256, 512, 1024), [], False),
    ],
)
def test_lengths_of_ones_own_leave_none_of_the_draft_out(
    context: int, lengths: tuple[int, ...], omitted: list[int], met: bool
) -> None:
    stated = stating({"sut.context_limit_tokens": context, "long_context.omitted": omitted})
    found = status("P-5.9.2-length-sequence", stated(measured_run("long_context", lengths=lengths)))
    assert (found.status is Status.MET) is met, found.reason


def test_a_perfectly_even_engine_has_no_tail_to_be_called_anything() -> None:
    even = "&decode_us_per_sequence=0&prefill_us_per_token=0&kv_us_per_token=0&attention_ns_per_pair=0"
    evidence = measured_run("itl", even)
    assert {each["tail_class"] for each in evidence.result.facts.value("itl.levels")} == {None}
    found = status("P-5.4.4.3-tail", evidence)
    assert found.status is Status.MET, found.reason


def test_direct_timing_wants_chunks_of_one_token() -> None:
    evidence = stating({"streaming.itl_option": "direct"})(measured_run("itl", SEVERAL, method="A"))
    found = status("M-4.6.3-itl-option-declared", evidence)
    assert found.status is Status.UNMET
    assert found.reason.startswith("direct timing of chunks of which")


def test_a_sibling_on_another_sut_does_not_count() -> None:
    evidence = SITUATIONS["gateway"]()
    (sibling,) = evidence.siblings
    elsewhere = dataclasses.replace(sibling, facts=complete({"sut.model.version": "rev-8"}).result.facts)
    evidence = dataclasses.replace(evidence, siblings=(elsewhere,))
    assert status("S-4.3.2.3-conversation-for-gateway", evidence).status is Status.UNMET


def test_a_sibling_that_sent_nothing_does_not_count() -> None:
    evidence = SITUATIONS["gateway"]()
    (sibling,) = evidence.siblings
    evidence = dataclasses.replace(evidence, siblings=(dataclasses.replace(sibling, observations=()),))
    assert status("S-4.3.2.3-conversation-for-gateway", evidence).status is Status.UNMET


def test_an_incomplete_custom_workload_is_no_workload() -> None:
    evidence = with_field("workload.content", "language", None)(complete(workload=CUSTOM))
    for entry in ("M-4.3-custom-fully-specified", "M-5.1.2.1-workload-defined"):
        assert status(entry, evidence).reason == "no evidence: workload.content.language"


# Warm-up, stream, guardrails, network.


def test_measuring_before_the_end_of_the_warm_up() -> None:
    first = int(SITUATIONS["gateway"]().records.submitted_ns.min())
    overlapping = with_result(warmup=WarmupReport(performed=True, last_finished_ns=first + 1))
    for entry in ("M-4.5.1-queue-drained", "P-5.1.3-run-to-count"):
        assert status(entry, gateway(overlapping)).status is Status.UNMET


def test_a_guardrail_test_in_the_report_is_a_comparison() -> None:
    evidence = gateway(without("guardrails.comparative_run"))
    guardrail = vouched(dataclasses.replace(evidence.result, test="guardrail"))
    evidence = dataclasses.replace(evidence, siblings=(*evidence.siblings, guardrail))
    assert status("S-4.8.2-comparative-runs", evidence).status is Status.MET


def test_exposed_components_of_ttft_are_reported() -> None:
    exposed = gateway(stating({"timing.server_side": ["queue_wait"]}))
    assert status("P-5.1.4.2-queue-and-prefill", exposed).status is Status.UNMET
    median = exposed.result.metrics["ttft.p50"]
    measured = with_result(metrics={**exposed.result.metrics, "ttft_queue_wait.p50": median})(exposed)
    assert status("P-5.1.4.2-queue-and-prefill", measured).status is Status.MET


# What is reported.


def test_five_thousand_requests_without_p99_9() -> None:
    """AMB-01: the count rule for P99.9 does not bind then, and the rule to report it is unmet."""
    evidence = complete(requests=5_000)
    assert status("M-5.1.2.1-request-count-p999", evidence).status is Status.NOT_APPLICABLE
    assert status("M-5.1.2.1-request-count-p99", evidence).status is Status.MET
    found = status("M-5.1.4.1-percentiles", evidence)
    assert (found.status, found.reason) == (Status.UNMET, "not reported: p99_9")


def test_a_statistic_is_reported_when_defined_over_samples_enough() -> None:
    assert reported(gateway().result, "p99_9")
    assert not reported(with_metric("ttft.p99_9", point=None)(gateway()).result, "p99_9")
    assert not reported(with_metric("ttft.p99_9", n=9_999)(gateway()).result, "p99_9")


def test_an_empty_table_by_input_length_is_none() -> None:
    empty = Table("ttft_by_input_length", "", ("Input Tokens", "P50 (ms)", "P95 (ms)", "P99 (ms)"), ())
    results = gateway().result.tables[:1]
    found = status("M-5.1.5.3-input-length-table", gateway(with_result(tables=(*results, empty))))
    assert found.status is Status.UNMET


def test_the_interval_that_looks_judged_is_no_bucket() -> None:
    metrics = gateway().result.metrics
    judged = {**metrics, "ttft[as judged].p95": metrics["ttft.p95"]}
    for entry in ("P-5.1.4.2-by-input-length", "S-5.1.4.2-buckets"):
        assert status(entry, gateway(with_result(metrics=judged))).status is Status.MET


# The load generator and what it stores of each request: contradictions between claim and record.


def test_the_coarser_of_declared_and_observed_clock_counts() -> None:
    (run,) = SITUATIONS["gateway"]().result.observations
    coarse = dataclasses.replace(run.selfcheck, clock_resolution_ns=15_600_000)
    found = status("M-4.2.1-timer-resolution-1ms", gateway(with_run(selfcheck=coarse)))
    assert found.status is Status.UNMET
    assert found.evidence["clock_resolution_ns"] == 15_600_000


def test_isolation_of_a_closed_loop_is_the_generators_alone() -> None:
    assert status("M-4.2.5-request-isolation", SITUATIONS["closed_loop"]()).status is Status.MET


def test_stricter_limits_of_the_host_cost_no_class() -> None:
    stricter = HostLimits(send_lag_ns=1_000_000, rate_share=0.99, empty_slot_share=0.0)
    held = gateway(with_run(host_limits=stricter))
    assert audit(held).verdict is audit(gateway()).verdict
    assert status("M-4.2.5-request-isolation", held).status is Status.MET


def test_slow_replacement_contradicts_the_closed_loop() -> None:
    slow = with_columns(scheduled_ns=lambda at: at - 30_000_000)
    found = status("M-4.2.4-closed-loop", slow(SITUATIONS["closed_loop"]()))
    assert found.status is Status.UNMET
    assert "late" in found.reason


@pytest.mark.parametrize(("late", "met"), [(1, True), (2, True), (3, False)])
def test_a_lone_late_replacement_of_few_does_not(late: int, met: bool) -> None:
    """Of twenty lags the longest is their P99."""

    def change(at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        at[5 : 5 + late] -= 30_000_000
        return at

    evidence = SITUATIONS["closed_loop"]()
    (run,) = evidence.runs
    few = together(with_run(records=run.records.part(0, 20)), with_columns(scheduled_ns=change))
    found = status("M-4.2.4-closed-loop", few(evidence))
    assert (found.status is Status.MET) is met, found.reason


def test_in_flight_peak_of_a_closed_loop_is_its_concurrency() -> None:
    assert in_flight_peak(SITUATIONS["closed_loop"]().records) == CONCURRENCY
    (run,) = SITUATIONS["closed_loop"]().result.observations
    assert run.plan.load == ClosedLoop(CONCURRENCY)


def test_what_a_broken_off_request_lacks_is_no_gap() -> None:
    """No first token, no last token; counts that nobody gave, where planned lengths stand in."""
    lacking = with_columns(
        first_content_ns=some(MISSING, FAILED),
        last_content_ns=some(MISSING, FAILED),
        input_tokens=some(MISSING, FAILED),
    )
    assert unmet(audit(restated(gateway(lacking)))) == {
        "S-0-consult-terminology",
        "S-1-consult-terminology-first",
    }
