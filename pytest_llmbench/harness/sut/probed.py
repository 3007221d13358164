"""What is found out of a measured load beside its replies: the serving engine's own metrics, read around and
during it; the round trips before and after it; and how the server counts prompts, against the tokenizer that
the SUT file names as its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_llmbench.harness.execution.drive import Stoppable, Told
from pytest_llmbench.http_client import is_grpc
from pytest_llmbench.model.facts import Facts, GeneratorFact, Origin, TokenizerFact
from pytest_llmbench.model.observation import EngineReadings, Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord, Phase, TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, Records
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.engine_metrics import EngineMetricsProbe, page_urls
from pytest_llmbench.probes.rtt import RoundTripProbe, facts_around
from pytest_llmbench.workloads.sequence import passing, text_of

if TYPE_CHECKING:
    from pytest_llmbench.tokens import HuggingFaceTokenizer


class ProbedExecutor:
    """An executor whose Observations of measured load carry the engine's own metrics."""

    def __init__(
        self, inner: Stoppable, probe: Callable[[], EngineMetricsProbe], absent: str | None = None
    ) -> None:
        """``probe`` makes the probe at the first measured load. If there is no page, it is not asked
        again. ``absent``: why there is none, where that is known."""
        self._inner = inner
        self._make = probe
        self._probe: EngineMetricsProbe | None = None
        self._absent = absent
        self.stop = inner.stop

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
        if plan.phase is not Phase.MEASURE:
            return self._inner.run(plan, on_record)
        readings: EngineReadings | None = None
        probe = self._ready()
        if probe is None:
            seen = self._inner.run(plan, on_record)
        else:
            probe.start()
            try:
                seen = self._inner.run(plan, on_record)
            finally:
                readings = probe.stop()
        said = readings.source if readings is not None else f"not measurable: {self._absent}"
        facts = Facts.of(Origin.DETECTED, {GeneratorFact.ENGINE_METRICS: said}, "metrics page of the engine")
        return replace(seen, engine=readings, facts=seen.facts | facts)

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            if self._probe is not None:
                self._probe.close()
                self._probe = None

    def _ready(self) -> EngineMetricsProbe | None:
        """The probe, after it has read the counters before the load; None where there is no page."""
        if self._absent is not None:
            return None
        if self._probe is None:
            self._probe = self._make()
        self._absent = self._probe.before()
        return self._probe if self._absent is None else None


def with_engine_metrics(
    executor: Stoppable, base_url: str, access: Access, declared: Mapping[str, str] | None = None
) -> ProbedExecutor:
    """``executor``, with ``Observation.engine`` filled from the server's metrics page, where it has one.

    ``declared``: series of the page that the SUT file names, by our names.
    """
    absent = "a gRPC server has no metrics page" if is_grpc(base_url) else None
    return ProbedExecutor(
        executor, lambda: EngineMetricsProbe(page_urls(base_url), access, declared=declared), absent
    )


class RoundTripExecutor:
    """An executor whose Observations of measured load carry the round trips before and after it."""

    def __init__(self, inner: Stoppable, probe: RoundTripProbe, *, adjusts: bool) -> None:
        """``adjusts``: they are what ``ttft_adjusted`` takes off."""
        self._inner, self._probe, self._adjusts = inner, probe, adjusts
        self.stop = inner.stop

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
        if plan.phase is not Phase.MEASURE:
            return self._inner.run(plan, on_record)
        before = self._probe.take()
        seen = self._inner.run(plan, on_record)
        return replace(
            seen, facts=seen.facts | facts_around(before, self._probe.take(), adjusts=self._adjusts)
        )

    def close(self) -> None:
        with self._probe:
            self._inner.close()


AGREEMENT: Final = TokenizerFact.AGREEMENT
"""Name of the fact: a mapping with ``prompts``, the number that was counted again, their mean ``tokens`` by
the tokenizer, and ``least`` and ``most``, by how much the server counts more. If both are equal, that is what
it adds."""
PROMPTS: Final = 32
"""How many of the first prompts of a load are counted again, after the load, when nothing is being
measured."""


def with_counted_prompts(inner: Stoppable, tokenizer: HuggingFaceTokenizer) -> Told:
    """A load generator whose measured loads carry the fact :data:`AGREEMENT`."""

    def facts(plan: LoadPlan, seen: Observation) -> Facts:
        measured = plan.phase is Phase.MEASURE
        return agreement(plan, seen.records, tokenizer.count) if measured else Facts()

    return Told(inner, facts)


def agreement(plan: LoadPlan, records: Records, count: Callable[[str], int]) -> Facts:
    """The fact :data:`AGREEMENT`; none if the server counted none of the prompts. Turns of sessions are left
    out: a server counts the template of each of their messages."""
    server = TOKEN_SOURCES.index(TokenSource.SERVER_USAGE)
    told = records.ok & (records.token_source == server) & (records.input_tokens != MISSING)
    told &= records.index < plan.first + PROMPTS
    theirs = dict(zip(records.index[told].tolist(), records.input_tokens[told].tolist(), strict=True))
    ours: dict[int, int] = {}
    for request in passing(plan.workload, plan.first, min(PROMPTS, plan.requests), plan.seed):
        text = text_of(request) if request.index in theirs and request.turn is None else None
        if text is not None:
            ours[request.index] = count(text)
    if not ours:
        return Facts()
    beyond = [theirs[index] - tokens for index, tokens in ours.items()]
    told_of = {
        "prompts": len(ours),
        "tokens": float(np.mean(list(ours.values()))),
        "least": min(beyond),
        "most": max(beyond),
    }
    return Facts.of(Origin.MEASURED, {AGREEMENT: told_of}, "usage of the server against the tokenizer file")
