"""The evidence that an audit judges: the result of one test, the other results of the same report, and the
load generator's capabilities, each with the unit tests that prove it.

Capabilities ``replay.*`` are those of the driver in virtual time, which stands for a wire that it does not
have. Entries of the catalogue with verification ``structural`` rest on them; a run-time fact that contradicts
one wins. A new transport or arrival law becomes a row here together with its test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from pytest_llmbench.model.judgement import Status, ValidityVerdict
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import PHASES, JoinedRecords, Records
from pytest_llmbench.model.result import INSTANCE, TestResult

_OPEN_LOOP = "tests/generator/test_generator_open_loop.py::test_open_loop_keeps_schedule_while_server_stalls"
_CLOSED_LOOP = "tests/generator/test_generator_closed_loop.py::test_closed_loop_keeps_concurrency"
_SUBMITTED = "tests/generator/test_generator_instants.py::test_submitted_when_last_byte_has_left"
_FIRST_CONTENT = "tests/generator/test_generator_instants.py::test_first_content_is_a_parsed_data_event"
_WEBSOCKET = "tests/generator/test_generator_websocket.py::test_a_message_has_the_instant_of_its_last_byte"
_GRPC = "tests/generator/test_generator_grpc.py"
_GRPC_MESSAGE = f"{_GRPC}::test_a_message_has_the_instant_of_its_last_byte"
_GRPC_SUBMITTED = f"{_GRPC}::test_the_submission_is_that_of_the_last_part"
_GRPC_FIRST_TOKEN = (
    "tests/wire/test_wire_grpc_dialects.py::test_the_first_token_is_in_the_first_message_with_one"
)
_NO_CONTENT = (
    "tests/generator/test_generator_instants.py::test_whitespace_and_reasoning_are_not_first_content"
)
_POISSON = "tests/arrivals/test_arrivals_schedule.py::test_poisson_gaps_are_exponential"
_SEEDED = "tests/arrivals/test_arrivals_schedule.py::test_schedule_is_determined_by_seed"
_UNIFORM = "tests/arrivals/test_arrivals_schedule.py::test_uniform_gaps_are_constant"
_GAMMA = "tests/arrivals/test_arrivals_schedule.py::test_gamma_gaps_have_the_declared_variation"
_SYNTHETIC = "tests/workloads/test_workloads_synthetic.py::test_synthetic_uniform_reproduces_published_hashes"
_ITL = "tests/metrics/test_metrics_itl.py"
_REPLAY = "tests/simulator/replay/test_simulator_replay.py"
_REPLAY_AGREES = f"{_REPLAY}::test_the_two_faces_agree_at_low_load"
_REPLAY_CHUNKS = f"{_REPLAY}::test_chunks_of_several_tokens"
_REPLAY_DELAYS = f"{_REPLAY}::test_delays_are_what_they_are_said_to_be"
_NANOSECONDS = "tests/store/test_store_records_file.py::test_record_line_keeps_nanoseconds"


@dataclass(frozen=True, slots=True)
class Capability:
    """A property of the generator."""

    value: Any
    """``True``, or the value that a run-time fact has to agree with."""
    proofs: tuple[str, ...]
    """Node ids of the tests that prove it."""


PUBLISHED_DIGESTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        # ShareGPT_V3_unfiltered_cleaned_split.json of ShareGPT_Vicuna_unfiltered.
        "ShareGPT": frozenset({"35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4"}),
        # Thousands of files, and no digest for all of them together.
        "The Stack": frozenset(),
    }
)
"""SHA-256 of the published files of each data set that the draft names."""
CAPABILITIES: Mapping[str, Capability] = MappingProxyType(
    {
        "open_loop": Capability(True, (_OPEN_LOOP,)),
        "closed_loop": Capability(True, (_CLOSED_LOOP,)),
        "arrival.poisson": Capability(True, (_POISSON, _SEEDED)),
        "arrival.uniform": Capability(True, (_UNIFORM,)),
        "arrival.bursty": Capability(True, (_GAMMA,)),
        "streaming": Capability(("sse", "websocket", "grpc"), (_FIRST_CONTENT, _WEBSOCKET, _GRPC_MESSAGE)),
        "concurrency_model": Capability("asyncio", (_OPEN_LOOP,)),
        "generation_order": Capability(True, (_SYNTHETIC,)),
        "timestamp_precision_ns": Capability(1, (_NANOSECONDS,)),
        "submit_points": Capability(
            ("last_request_byte", "message_sent"), (_SUBMITTED, _WEBSOCKET, _GRPC_SUBMITTED)
        ),
        "first_points": Capability(
            ("parsed_data_event", "first_token_message"), (_FIRST_CONTENT, _GRPC_FIRST_TOKEN)
        ),
        "itl.gaps": Capability(
            True,
            (
                f"{_ITL}::test_direct_and_b_give_further_tokens_of_a_chunk_no_gap",
                f"{_ITL}::test_a_is_between_chunks",
                f"{_ITL}::test_c_is_the_servers_clock",
                f"{_ITL}::test_points_are_those_of_numpy",
            ),
        ),
        "itl.per_request": Capability(True, (f"{_ITL}::test_jitter_and_longest_pause",)),
        "itl.without_ttft": Capability(True, (f"{_ITL}::test_the_first_token_has_no_gap_whatever_the_ttft",)),
        "replay.streaming": Capability(("sse", "grpc"), (_REPLAY_CHUNKS, _REPLAY_AGREES)),
        "replay.submit_points": Capability(("last_request_byte", "message_sent"), (_REPLAY_DELAYS,)),
        "replay.first_points": Capability(
            ("parsed_data_event", "first_token_message"), (_REPLAY_DELAYS, _REPLAY_AGREES)
        ),
        "first_token_kind": Capability("content", (_FIRST_CONTENT, _NO_CONTENT)),
    }
)


VIRTUAL_TIME = "replay"
"""Value of the fact ``sut.simulated`` for an engine in virtual time."""
BY_SIBLINGS = frozenset(
    {
        "M-4.1-sut-boundary-declared",
        "M-4.3.2.1-synthetic-uniform-for-engine",
        "M-4.5.1-queue-drained",
        "M-5.1.2.2-poisson-required",
        "P-5.1.3-run-to-count",
        "P-5.3.3-capacity-estimate",
        "P-5.4.2-load-as-percentage",
        "P-5.8.3-capacity-first",
        "P-5.10.2-load-levels",
        "S-4.3.2.3-conversation-for-gateway",
        "S-4.8.2-comparative-runs",
        "S-5.6.2-load-70-90",
        "S-7.2-vary-workloads",
    }
)
"""Entries that another result of the same report may decide; of all others a later result changes nothing."""


@dataclass(frozen=True)
class Evidence:
    """The evidence of one test: facts, records, tables and metrics of ``result``, and the capabilities of the
    generator.

    A verdict belongs to one test on one SUT configuration. ``siblings`` are other results of the same report;
    the few entries that another run may satisfy (AMB-05, AMB-06) look there.
    """

    test: str
    result: TestResult
    siblings: tuple[TestResult, ...] = ()
    capabilities: Mapping[str, Capability] = field(default_factory=lambda: CAPABILITIES)
    systems: int = 1
    """Number of systems compared in the report; from two on the rules for comparisons bind as well."""
    published_digests: Mapping[str, frozenset[str]] = field(default_factory=lambda: PUBLISHED_DIGESTS)
    """Digests of published files by the name of the data set."""

    @cached_property
    def runs(self) -> tuple[Observation, ...]:
        """The observations of measured load."""
        return tuple(seen for seen in self.result.observations if seen.plan.phase is Phase.MEASURE)

    @cached_property
    def records(self) -> Records:
        """Every measured request of every run. They are looked at by a few columns, or in blocks."""
        return _in_phase(self.runs, Phase.MEASURE)

    @cached_property
    def unmeasured(self) -> Records:
        """Warm-up and probe requests, where the result carries them."""
        parts = [_in_phase(self.result.observations, phase) for phase in (Phase.WARMUP, Phase.PROBE)]
        return Records.concatenate(parts)

    @cached_property
    def counted(self) -> dict[str, Any]:
        """Cache of what predicates have counted once and may need again; a changed copy starts anew."""
        return {}

    @property
    def simulated(self) -> bool:
        """Whether nothing was sent: by what the runs say of themselves, which nobody can declare away."""
        facts = (self.result.facts, *(run.facts for run in self.result.observations))
        return any(known.value("sut.simulated") == VIRTUAL_TIME for known in facts)

    @cached_property
    def same_system(self) -> tuple[TestResult, ...]:
        """Siblings of whatever test on the same SUT: a run that was shared was measured by one of them."""
        own, number = self.result.disclosure, self.result.facts.value(INSTANCE)
        return tuple(
            sibling
            for sibling in self.siblings
            if sibling.disclosure == own and sibling.facts.value(INSTANCE) == number
        )

    def others(self, test: str) -> tuple[TestResult, ...]:
        """Results of ``test`` among the siblings, on the same SUT, that are evidence by themselves."""
        return tuple(
            sibling for sibling in self.same_system if sibling.test == test and _is_evidence(sibling)
        )


def _is_evidence(sibling: TestResult) -> bool:
    """Whether a sibling is valid and audited: nothing blocks it but what siblings decide. It met the floors
    of its own test."""
    compliance = sibling.compliance
    if compliance is None or sibling.validity.verdict is not ValidityVerdict.VALID:
        return False
    blocking = {
        status.id
        for status in compliance.requirements
        if status.status is Status.UNMET and status.effect == "blocks"
    }
    return blocking <= BY_SIBLINGS and any(len(seen.records) for seen in sibling.observations)


def _in_phase(observations: tuple[Observation, ...], phase: Phase) -> Records:
    parts = []
    for seen in observations:
        mask = seen.records.phase == PHASES.index(phase)
        parts.append(seen.records if bool(np.all(mask)) else seen.records.select(mask))
    return JoinedRecords(parts) if len(parts) > 1 else Records.concatenate(parts)
