"""One view over the plain dict of a report (``report.json``) that all renderers share.

What a verdict is called, which findings are worth a line, what to do next: decided here once, so that the
terminal, the pages and the CI files never contradict each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pytest_llmbench.reports import numbers

Entry = Mapping[str, Any]

TONES = {
    "PASS": "good",
    "FAIL": "bad",
    "INCONCLUSIVE": "warn",
    "INVALID": "bad",
    "ERROR": "bad",
    "SKIPPED": "neutral",
    "pass": "good",
    "fail": "bad",
    "inconclusive": "warn",
    "valid": "good",
    "invalid": "bad",
    "unconditional": "good",
    "conditional": "warn",
    "not_compliant": "bad",
    "met": "good",
    "unmet": "bad",
    "not_applicable": "neutral",
}
"""How a word of the vocabulary is meant, for renderers that have colours. The word itself is always there."""

_DECLARABLE = ("sut.", "guardrails.", "clock.", "network.", "tokenizer.", "isolation.", "streaming.")
_OF_ONE_RUN = ("workload.", "load.", "warmup.", "timing.", "cold_start")
_FACT_KEY = re.compile(r"\b[a-z_]+(?:\.[a-z_]+)+\b")
_SAMPLES_FOR_TTFT = {"p99": 1_000, "p99_9": 10_000}
"""Samples below which a TTFT report makes no such claim (section 5.1.4.3 of the draft, AMB-01)."""
_INDICATIVE_BELOW = 1_000
"""Samples below which any other P99 is marked (AMB-47)."""
_STATISTICS = {"p50": "P50", "p90": "P90", "p95": "P95", "p99": "P99", "p99_9": "P99.9"}


def words(verdict: str) -> str:
    """``not_compliant`` → ``not compliant``."""
    return verdict.replace("_", " ")


def metric_label(name: str) -> str:
    """``ttft.p99_9`` → ``TTFT P99.9``; ``output_token_throughput`` → ``Output token throughput``."""
    family, _, statistic = name.partition(".")
    base, bracket, bucket = family.partition("[")
    stem, _, variant = base.partition("_")
    if stem in ("ttft", "tpot", "e2e", "itl"):
        base = stem.upper() + (f" ({variant.replace('_', ' ')})" if variant else "")
    else:
        base = base.replace("_", " ").capitalize()
    shown = _STATISTICS.get(statistic, statistic.replace("_", " ").capitalize())
    return f"{base}{bracket}{bucket} {shown}".strip()


def fact_text(value: Any) -> str:
    """A fact's value as one line."""
    if value is None:
        return "not declared"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(part, str | int | float) for part in value):
        return ", ".join(str(part) for part in value) or "none"
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


@dataclass(frozen=True)
class TestView:
    """One entry of ``tests``."""

    __test__ = False  # pytest must not take it for a test class

    entry: Entry

    @property
    def nodeid(self) -> str:
        return str(self.entry["nodeid"])

    @property
    def name(self) -> str:
        """The node id without its file: the file is the same for most of a report."""
        return self.nodeid.partition("::")[2] or self.nodeid

    @property
    def kind(self) -> str:
        """``ttft (5.1 Time to First Token)``."""
        return f"{self.entry['test']} ({self.entry['section']} {self.entry.get('title') or ''}".rstrip() + ")"

    @property
    def valid(self) -> bool:
        return bool(self.entry["validity"]["verdict"] == "valid")

    @property
    def measured(self) -> bool:
        return bool(self.entry["metrics"])

    @cached_property
    def headline(self) -> str:
        """The one word for the test: PASS, FAIL, INCONCLUSIVE, INVALID, ERROR or SKIPPED."""
        if self.entry["outcome"] == "skipped":
            return "SKIPPED"
        if not self.valid:
            return "INVALID" if self.measured else "ERROR"
        verdict = str(self.entry["gate"]["verdict"]).upper()
        if verdict == "PASS" and self.entry["outcome"] in ("failed", "error"):
            return "FAIL" if self.entry["outcome"] == "failed" else "ERROR"
        return verdict

    @property
    def judgements(self) -> str:
        """``valid · not compliant``."""
        if not self.measured:
            return "nothing was measured"
        validity = "valid" if self.valid else "INVALID"
        return f"{validity} · {words(self.entry['compliance']['verdict'])}"

    @property
    def objectives(self) -> Sequence[Entry]:
        return list(self.entry["gate"]["objectives"])

    @property
    def tables(self) -> Mapping[str, Entry]:
        return dict(self.entry["tables"])

    @property
    def requirements(self) -> Sequence[Entry]:
        return list(self.entry["compliance"]["requirements"])

    def unmet(self, *effects: str) -> list[Entry]:
        """Unmet requirements, those that block first; with ``effects`` only those of such an effect."""
        order = {"blocks": 0, "downgrades": 1}
        found = [r for r in self.requirements if r["status"] == "unmet"]
        chosen = [r for r in found if not effects or r.get("effect", "none") in effects]
        return sorted(chosen, key=lambda r: order.get(r.get("effect", "none"), 2))

    @property
    def findings(self) -> Sequence[Entry]:
        return list(self.entry["validity"]["findings"])

    @property
    def noteworthy_findings(self) -> list[Entry]:
        """What is not as it should be; what voids the run comes first."""
        return sorted((f for f in self.findings if not f["ok"]), key=lambda finding: not finding["voids"])

    def metric(self, name: str) -> Entry | None:
        found: Entry | None = self.entry["metrics"].get(name)
        return found

    def families(self) -> list[str]:
        """Distributions that were measured (``ttft``, ``tpot``, …), buckets left out."""
        return [
            name.removesuffix(".p50") for name in self.entry["metrics"] if re.fullmatch(r"\w+\.p50", name)
        ]

    def claim(self, name: str) -> str:
        """A metric as the draft lets a report state it: too small a sample is said, not hidden."""
        metric = self.metric(name)
        if metric is None or metric["point"] is None:
            return numbers.NOT_MEASURED
        text = self.unsupported(name) or numbers.estimate(metric)
        tail = name.partition(".")[2] in _SAMPLES_FOR_TTFT
        indicative = tail and not name.startswith("ttft") and metric["n"] < _INDICATIVE_BELOW
        return f"{text}, indicative" if indicative else text

    def unsupported(self, name: str) -> str | None:
        """``n < 1000, not reported`` for a tail of TTFT from too small a sample; None for all else."""
        metric = self.metric(name)
        required = _SAMPLES_FOR_TTFT.get(name.partition(".")[2], 0)
        if metric is None or not name.startswith("ttft") or metric["n"] >= required:
            return None
        return f"n < {required}, not reported"

    @property
    def completion(self) -> str:
        """``998 of 1000 requests completed (99.8 %); 2 timeout``."""
        counts = self.entry["counts"]
        submitted, ok = counts.get("submitted", 0), counts.get("ok", 0)
        if not submitted:
            return "no request was submitted"
        failed = ", ".join(
            f"{count} {words(name)}"
            for name, count in counts.items()
            if name not in ("submitted", "ok") and count
        )
        share = numbers.percentage(ok / submitted)
        return f"{ok} of {submitted} requests completed ({share})" + (f"; {failed}" if failed else "")

    @property
    def load_text(self) -> str:
        load = self.entry["load"]
        return numbers.NOT_MEASURED if load is None else str(load["description"])

    @property
    def missing_facts(self) -> list[str]:
        """Keys that the SUT file could declare and whose absence leaves a requirement unmet."""
        lacking = [r for r in self.unmet("blocks", "downgrades") if "no evidence" in r["reason"]]
        named = (key for requirement in lacking for key in _FACT_KEY.findall(requirement["reason"]))
        return list(dict.fromkeys(key for key in named if key.startswith(_DECLARABLE)))

    @property
    def plots(self) -> dict[str, Entry]:
        """Plots by id; percentiles that may be claimed are marked on the distribution of TTFT."""
        found = dict(self.entry["plots"])
        if "ttft_cdf" in found:
            plot = dict(found["ttft_cdf"])
            plot["marks"] = self._percentile_marks() | dict(plot["marks"])
            found["ttft_cdf"] = plot
        return found

    def _percentile_marks(self) -> dict[str, float]:
        marks = {}
        for statistic in ("p50", "p99"):
            metric = self.metric(f"ttft.{statistic}")
            if (
                metric is not None
                and metric["point"] is not None
                and not self.unsupported(f"ttft.{statistic}")
            ):
                marks[_STATISTICS[statistic]] = metric["point"]
        return marks

    @property
    def next_steps(self) -> list[str]:
        """What would turn an open or a poor judgement into a better one."""
        steps = []
        needed = [o["requests_needed"] for o in self.objectives if o.get("requests_needed") is not None]
        if needed:
            steps.append(
                f"to decide the limits, measure about {max(needed)} more requests ({self._more(needed)})"
            )
        if self.missing_facts:
            steps.append("declare in the SUT file (--llm-sut): " + ", ".join(self.missing_facts))
        return steps

    def _more(self, needed: Iterable[int]) -> str:
        return f"requests={self.entry['counts'].get('submitted', 0) + max(needed)}"


def objective_text(objective: Entry) -> str:
    """``ttft.p99 <= 500 ms``."""
    limit = numbers.quantity(objective["limit"], objective["unit"])
    return f"{objective['metric']} {objective['op']} {limit}"


def measured_text(objective: Entry) -> str:
    """The measured side of an objective, precise enough to be told from the limit."""
    if objective["point"] is None:
        return numbers.NOT_MEASURED
    point = numbers.against(objective["point"], objective["limit"], objective["unit"])
    ends = numbers.interval(objective["lower"], objective["upper"], objective["unit"])
    return f"{point} {ends}" if ends.startswith("[") else f"{point} ({ends})"


@dataclass(frozen=True)
class ReportView:
    """The whole report."""

    report: Entry

    @cached_property
    def tests(self) -> tuple[TestView, ...]:
        return tuple(TestView(entry) for entry in self.report["tests"])

    def fact(self, key: str) -> Any:
        """A fact about the SUT: declared for the session, else found by a test. None when nobody knows."""
        sources = [self.report["sut"]["facts"], *(test.entry.get("facts") or {} for test in self.tests)]
        return next((facts[key]["value"] for facts in sources if key in facts), None)

    @property
    def facts(self) -> dict[str, Entry]:
        """All facts about the SUT and its surroundings; what belongs to one run stays with its test."""
        found: dict[str, Entry] = {}
        for test in self.tests:
            found |= test.entry.get("facts") or {}
        found |= self.report["sut"]["facts"]
        return {key: fact for key, fact in sorted(found.items()) if not key.startswith(_OF_ONE_RUN)}

    @property
    def tally(self) -> str:
        """``1 PASS, 2 INCONCLUSIVE``."""
        headlines = [test.headline for test in self.tests]
        return (
            ", ".join(f"{headlines.count(word)} {word}" for word in dict.fromkeys(headlines)) or "no test ran"
        )

    @property
    def model(self) -> str:
        name = self.fact("sut.model.name") or self.report["sut"]["model"]
        parts = [name, self.fact("sut.model.version"), self.fact("sut.model.quantization")]
        return " ".join(str(part) for part in parts if part not in (None, "none")) or "not declared"

    @property
    def hardware(self) -> str:
        if self.fact("sut.hardware.disclosed") is False:
            return "undisclosed"
        kind, count = self.fact("sut.hardware.accelerator_type"), self.fact("sut.hardware.accelerator_count")
        if kind is None:
            return "not declared"
        return f"{kind} x {count}" if count is not None else str(kind)

    @property
    def software(self) -> str:
        parts = [self.fact("sut.software.engine"), self.fact("sut.software.version")]
        return " ".join(str(part) for part in parts if part is not None) or "not declared"

    @property
    def boundary(self) -> str:
        declared = self.fact("sut.boundary")
        return _BOUNDARIES.get(str(declared), str(declared)) if declared is not None else "not declared"


_BOUNDARIES = {
    "model_engine": "Model Engine",
    "application_gateway": "Gateway",
    "compound_system": "Compound",
}
"""As appendix C.1 writes them."""

__all__ = [
    "TONES",
    "Entry",
    "ReportView",
    "TestView",
    "fact_text",
    "measured_text",
    "metric_label",
    "objective_text",
    "words",
]
