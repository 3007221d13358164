"""A look at the evidence: what a predicate asks for is kept, so that every answer shows what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.compliance.fact_keys import FACT_KEYS
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import Plot, Table, TestResult

_BLANK = ("", "unknown", "not declared")


class NoEvidenceError(Exception):
    """The evidence that a predicate needs is missing. The entry is then unmet, never met."""

    def __init__(self, *missing: str) -> None:
        self.missing = missing
        super().__init__(f"no evidence: {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one predicate."""

    met: bool
    reason: str
    evidence: Mapping[str, Any]


class EvidenceView:
    """The evidence as one predicate sees it.

    ``need`` and its relatives raise :class:`NoEvidenceError` for what is absent or blank, so that a predicate
    deals with values only.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.seen: dict[str, Any] = {}

    @property
    def result(self) -> TestResult:
        return self.evidence.result

    def fact(self, key: str, default: Any = None) -> Any:
        """The fact under ``key``, which has to be in ``FACT_KEYS``; ``default`` when nothing is known."""
        if key not in FACT_KEYS:
            raise KeyError(f"{key!r} is not in FACT_KEYS")
        value = self.result.facts.value(key)
        if value is None:
            return default
        self.seen[key] = value
        return value

    def need(self, key: str) -> Any:
        """The fact under ``key``; a blank one, or ``unknown``, counts as absent."""
        value = self.fact(key)
        if not _states_something(value):
            raise NoEvidenceError(key)
        return value

    def need_all(self, *keys: str) -> tuple[Any, ...]:
        missing = [key for key in keys if not _states_something(self.fact(key))]
        if missing:
            raise NoEvidenceError(*missing)
        return tuple(self.seen[key] for key in keys)

    def need_fields(self, key: str, *names: str) -> tuple[Any, ...]:
        """Fields of a fact that is a mapping; ``system_prompt.present`` reaches into it."""
        mapping = self.need(key)
        values = [_field(mapping, name) for name in names]
        missing = [
            f"{key}.{name}" for name, value in zip(names, values, strict=True) if not _states_something(value)
        ]
        if missing:
            raise NoEvidenceError(*missing)
        return tuple(values)

    @property
    def runs(self) -> tuple[Observation, ...]:
        if not self.evidence.runs:
            raise NoEvidenceError("a measured run")
        return self.evidence.runs

    @property
    def records(self) -> Records:
        """The measured requests, at least one."""
        if not len(self.evidence.records):
            raise NoEvidenceError("measured records")
        return self.evidence.records

    def capability(self, name: str) -> Any:
        """The value of a capability, with its proofs as evidence."""
        capability = self.evidence.capabilities.get(name)
        if capability is None or capability.value in (False, None) or not capability.proofs:
            raise NoEvidenceError(f"capability.{name}")
        self.seen[f"capability.{name}"] = capability.value
        self.seen[f"capability.{name}.proofs"] = list(capability.proofs)
        return capability.value

    def driver_capability(self, name: str) -> Any:
        """The capability of whatever carried the load: in a replay no generator sent anything and no wire was
        there."""
        self.fact("sut.simulated")
        return self.capability(f"replay.{name}" if self.evidence.simulated else name)

    def metric(self, name: str) -> Estimate:
        """A metric whose point is defined."""
        estimate = self.result.metrics.get(name)
        if estimate is None or estimate.point is None:
            raise NoEvidenceError(f"metric {name}")
        self.seen[f"metric.{name}"] = estimate.point
        return estimate

    def table(self, table_id: str) -> Table:
        for table in self.result.tables:
            if table.id == table_id:
                self.seen[f"table.{table_id}"] = f"{len(table.rows)} rows"
                return table
        raise NoEvidenceError(f"table {table_id}")

    def plot(self, *plot_ids: str) -> Plot:
        """The first plot with one of these ids."""
        for plot in self.result.plots:
            if plot.id in plot_ids:
                self.seen["plot"] = plot.id
                return plot
        raise NoEvidenceError(" or ".join(f"plot {plot_id}" for plot_id in plot_ids))

    def configuration(self, item: str) -> str:
        """The text of one item of the configuration summary."""
        text = dict(self.result.configuration).get(item, "")
        if not _states_something(text):
            raise NoEvidenceError(f"configuration summary, {item}")
        self.seen[f"configuration.{item}"] = text
        return text

    def note(self, name: str, value: Any) -> None:
        """Keep a value that was computed from the records."""
        self.seen[name] = value

    def answer(self, met: bool, yes: str, no: str) -> Answer:
        return Answer(met, yes if met else no, dict(self.seen))

    def met(self, reason: str) -> Answer:
        return Answer(True, reason, dict(self.seen))

    def unmet(self, reason: str) -> Answer:
        return Answer(False, reason, dict(self.seen))


def _states_something(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in _BLANK
    return value is not None and value != {}


def _field(mapping: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        if not isinstance(mapping, Mapping):
            return None
        mapping = mapping.get(name)
    return mapping
