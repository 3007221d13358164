"""The evidence that an audit judges: the result of one test, the other results of the same report, and the
load generator's capabilities.

Capabilities ``replay.*`` are those of the driver in virtual time, which stands for a wire that it does not
have. Entries of the catalogue with verification ``structural`` rest on them; a run-time fact that contradicts
one wins. A new transport or arrival law becomes a row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from pytest_llmbench.model.facts import EndpointFact, SUTFact
from pytest_llmbench.model.judgement import Status, ValidityVerdict
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import PHASES, JoinedRecords, Records
from pytest_llmbench.model.result import TestResult

PUBLISHED_DIGESTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        # ShareGPT_V3_unfiltered_cleaned_split.json of ShareGPT_Vicuna_unfiltered.
        "ShareGPT": frozenset({"35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4"}),
        # Thousands of files, and no digest for all of them together.
        "The Stack": frozenset(),
    }
)
"""SHA-256 of the published files of each data set that the draft names."""
CAPABILITIES: Mapping[str, Any] = MappingProxyType(
    {
        "open_loop": True,
        "closed_loop": True,
        "arrival.poisson": True,
        "arrival.uniform": True,
        "arrival.bursty": True,
        "streaming": ("sse", "websocket", "grpc"),
        "concurrency_model": "asyncio",
        "generation_order": True,
        "timestamp_precision_ns": 1,
        "submit_points": ("last_request_byte", "message_sent"),
        "first_points": ("parsed_data_event", "first_token_message"),
        "itl.gaps": True,
        "itl.per_request": True,
        "itl.without_ttft": True,
        "replay.streaming": ("sse", "grpc"),
        "replay.submit_points": ("last_request_byte", "message_sent"),
        "replay.first_points": ("parsed_data_event", "first_token_message"),
        "first_token_kind": "content",
    }
)
"""Properties of the generator: ``True``, or the value that a run-time fact has to agree with. The tests that
prove each are named in ``tests/compliance/test_compliance_capabilities.py``."""
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
    capabilities: Mapping[str, Any] = field(default_factory=lambda: CAPABILITIES)
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
        return any(known.value(SUTFact.SIMULATED) == VIRTUAL_TIME for known in facts)

    @cached_property
    def same_system(self) -> tuple[TestResult, ...]:
        """Siblings of whatever test on the same SUT: a run that was shared was measured by one of them."""
        own, number = self.result.disclosure, self.result.facts.value(EndpointFact.INSTANCE)
        return tuple(
            sibling
            for sibling in self.siblings
            if sibling.disclosure == own and sibling.facts.value(EndpointFact.INSTANCE) == number
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
