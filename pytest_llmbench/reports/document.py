"""The views over a report and over an entry of its ``tests``, in plain dicts, which all renderers share.

What a verdict is called, which findings are worth a line, what to do next: decided here once, so that the
terminal, the pages and the CI files never contradict each other.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pytest_llmbench.model import numbers
from pytest_llmbench.model.draft import SAMPLES_REQUIRED
from pytest_llmbench.model.facts import COLD_START, Key, LoadFact, Origin, SUTFact, Value
from pytest_llmbench.model.numbers import Entry, shown_unit
from pytest_llmbench.model.record import NO_FAILURES, Outcome
from pytest_llmbench.reports.comparisons import headline_names, metric_label, metric_name, statistic_label

TONES = {
    "PASS": "good",
    "FAIL": "bad",
    "INCONCLUSIVE": "warn",
    "INVALID": "bad",
    "ERROR": "bad",
    "SKIPPED": "neutral",
    "XFAIL": "neutral",
    "XPASS": "warn",
    "pass": "good",
    "fail": "bad",
    "inconclusive": "warn",
    "not_judged": "neutral",
    "valid": "good",
    "invalid": "bad",
    "unconditional": "good",
    "conditional": "warn",
    "not_compliant": "bad",
    "met": "good",
    "unmet": "bad",
    "not_applicable": "neutral",
}
"""Word of the vocabulary → its tone, for renderers with colours. The word itself is always shown."""

_DECLARABLE = ("sut.", "guardrails.", "clock.", "network.", "tokenizer.", "isolation.", "streaming.")
_FACT_KEY = re.compile(r"\b[a-z_]+(?:\.[a-z_]+)+\b")


def words(verdict: str) -> str:
    """A verdict in words: ``not_compliant`` → ``not compliant``."""
    return verdict.replace("_", " ")


_FIRST_WAVES = {
    "included": "a job: its first wave is in the figures",
    "left out": "the steady state: its first wave is left out",
    "nothing else": "no more than its first wave",
}
"""Value of the fact ``load.first_wave`` → its words."""
_VIRTUAL_TIME = "replay"
"""Value of the fact ``sut.simulated`` where nothing was sent."""


def marked(verdict: str, *, simulated: bool) -> str:
    """A compliance class in words, marked as simulated for a run in virtual time."""
    return f"{words(verdict)} (simulated)" if simulated else words(verdict)


def fact_text(value: Any) -> str:
    """The value of a fact as one line."""
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
    """A view over one entry of ``tests``."""

    __test__ = False  # pytest must not take it for a test class

    entry: Entry
    with_file: bool = False
    """Whether the name holds the file, since a test of another file has the same one."""

    @property
    def nodeid(self) -> str:
        return str(self.entry["nodeid"])

    @property
    def name(self) -> str:
        """The node id, without its file where the rest tells it; with the number of the attempt, unless it is
        the first."""
        number = self.entry.get("attempts", 1)
        which = f" (attempt {number})" if number > 1 else ""
        short = "" if self.with_file else self.nodeid.partition("::")[2]
        return (short or self.nodeid) + which

    @property
    def kind(self) -> str:
        """The kind of test, ``ttft (5.1 Time to First Token)``; without a section for a test beyond the
        draft."""
        title = f"{self.entry['section']} {self.entry.get('title') or ''}".strip()
        return f"{self.entry['test']} ({title})"

    def fact(self, key: Key[Value]) -> Value | None:
        """The value of a fact that the test found or was told; None where there is none."""
        return ((self.entry.get("facts") or {}).get(key) or {}).get("value")

    @property
    def of_the_draft(self) -> bool:
        """Whether it is a test of the draft, with clauses to comply with."""
        return bool(self.entry["section"])

    @property
    def valid(self) -> bool:
        return bool(self.entry["validity"]["verdict"] == "valid")

    @property
    def measured(self) -> bool:
        return bool(self.entry["metrics"])

    @cached_property
    def headline(self) -> str:
        """The headline of the test in one word: PASS, FAIL, INCONCLUSIVE, INVALID, ERROR, SKIPPED, XFAIL or
        XPASS."""
        by_pytest = {"skipped": "SKIPPED", "xfailed": "XFAIL", "xpassed": "XPASS"}.get(self.entry["outcome"])
        if by_pytest is not None:
            return by_pytest
        if not self.valid:
            return "INVALID" if self.measured else "ERROR"
        verdict = str(self.entry["gate"]["verdict"]).upper()
        if verdict == "PASS" and self.entry["outcome"] in ("failed", "error"):
            return "FAIL" if self.entry["outcome"] == "failed" else "ERROR"
        return verdict

    @property
    def judgements(self) -> str:
        """Validity and compliance in words: ``valid · not compliant``."""
        if not self.measured:
            return "nothing was measured"
        validity = "valid" if self.valid else "INVALID"
        return f"{validity} · {self.compliance_text}"

    @property
    def compliance(self) -> str:
        """The compliance class in words; a test beyond the draft has none."""
        return str(self.entry["compliance"]["verdict"]) if self.of_the_draft else "not part of the draft"

    @property
    def simulated(self) -> bool:
        """Whether nothing was sent: the embedded engine ran in virtual time."""
        if self.of_the_draft:
            return bool(self.entry["compliance"].get("simulated", False))
        return bool(self.fact(SUTFact.SIMULATED) == _VIRTUAL_TIME)

    @property
    def compliance_text(self) -> str:
        """The compliance class in words, marked if it is that of a simulation: ``unconditional
        (simulated)``."""
        return marked(self.compliance, simulated=self.simulated and self.of_the_draft)

    @property
    def objectives(self) -> Sequence[Entry]:
        return list(self.entry["gate"]["objectives"])

    @property
    def advisory(self) -> Sequence[Entry]:
        """Limits that are judged and decide nothing."""
        return list(self.entry["gate"].get("advisory", ()))

    @property
    def advisory_not_kept(self) -> list[str]:
        """Sentences on those that are not kept."""
        return [
            f"{self.name}: advisory limit {objective_text(one)} {_NOT_KEPT[one['verdict']]}, "
            f"{measured_text(one)}"
            for one in self.advisory
            if one["verdict"] in _NOT_KEPT
        ]

    def judged(self, verdict: str) -> str:
        """The verdict on a limit in words; in a void run no limit is judged."""
        return verdict if self.valid else "not_judged"

    @property
    def comparisons(self) -> Sequence[Entry]:
        """The comparisons with a baseline or another system; empty for a void run, since its numbers are not
        judged."""
        return list(self.entry.get("comparisons") or ()) if self.valid else []

    @property
    def every_attempt(self) -> list[Entry]:
        """The attempts at the test: ``duration_s`` and ``spent`` of each, in order."""
        return [*self.entry.get("earlier_attempts", ()), self.entry]

    @property
    def attempt(self) -> str | None:
        """The attempts before this one, ``attempt 2 of this test, after attempt 1: FAIL, ttft.p99 …``; None
        for a test that was run once."""
        number = self.entry.get("attempts", 1)
        if number <= 1:
            return None
        earlier = enumerate(self.entry.get("earlier_attempts", ()), start=1)
        told = [
            f"attempt {at}: {one['status']}, {one['reason'] or 'no reason is known'}" for at, one in earlier
        ]
        return f"attempt {number} of this test" + (f", after {'; '.join(told)}" if told else "")

    @property
    def tables(self) -> Mapping[str, Entry]:
        return dict(self.entry["tables"])

    @property
    def requirements(self) -> Sequence[Entry]:
        return list(self.entry["compliance"]["requirements"])

    def unmet(self, *effects: str) -> list[Entry]:
        """Unmet requirements, the blocking ones first; with ``effects`` only those with such an effect."""
        order = {"blocks": 0, "downgrades": 1}
        found = [r for r in self.requirements if r["status"] == "unmet"]
        chosen = [r for r in found if not effects or r.get("effect", "none") in effects]
        return sorted(chosen, key=lambda r: order.get(r.get("effect", "none"), 2))

    @property
    def findings(self) -> Sequence[Entry]:
        return list(self.entry["validity"]["findings"])

    @property
    def noteworthy_findings(self) -> list[Entry]:
        """Findings that are not ok, those that void the run first."""
        return sorted((f for f in self.findings if not f["ok"]), key=lambda finding: not finding["voids"])

    @property
    def warnings(self) -> list[Entry]:
        """Findings that are not ok and do not void the run, if something was measured."""
        return [each for each in self.noteworthy_findings if not each["voids"]] if self.measured else []

    def metric(self, name: str) -> Entry | None:
        found: Entry | None = self.entry["metrics"].get(name)
        return found

    def families(self) -> list[str]:
        """Measured latency distributions (``ttft``, ``itl[90%]``, …), without length buckets."""
        found = []
        for name, metric in self.entry["metrics"].items():
            parts = metric_name(name)
            if parts.statistic in ("p50", "p95", "p99") and metric["unit"] == "ms" and not parts.is_bucket:
                found.append(parts.family)
        return list(dict.fromkeys(found))

    def by_qualifier(self) -> dict[str, list[str]]:
        """Qualifier → names of its metrics, those of the whole test (under ``""``) first."""
        groups: dict[str, list[str]] = {"": []}
        for name in self.entry["metrics"]:
            groups.setdefault(metric_name(name).qualifier, []).append(name)
        return {qualifier: names for qualifier, names in groups.items() if names}

    @property
    def headlines(self) -> list[str]:
        """Names of the metrics that the test is about."""
        return headline_names(str(self.entry["test"]), self.entry["metrics"])

    @property
    def first_figure(self) -> str:
        """The main figure of a test without limits: ``Max output throughput: 2847 tok/s [2790, 2901]``."""
        names = [*self.headlines, *(f"{family}.p99" for family in self.families())]
        there = {
            name: metric["point"] is not None and self.unsupported(name) is None
            for name in names
            if (metric := self.metric(name))
        }
        # The first that has a value, else the first.
        name = max(there, key=lambda name: there[name], default=None)
        return numbers.NOT_MEASURED if name is None else f"{metric_label(name)}: {self.claim(name)}"

    def claim(self, name: str) -> str:
        """A metric as the draft lets a report state it: if the sample is too small, the text says so."""
        metric = self.metric(name)
        if metric is None or metric["point"] is None:
            return numbers.undefined(metric)
        text = self.unsupported(name) or self.stated(name)
        return text if self._binds(name) else numbers.tagged(text, name, metric)

    def stated(self, name: str) -> str:
        """A metric with its interval, whatever its sample size."""
        metric = self.entry["metrics"][name]
        return numbers.estimate(dict(metric) | {"unit": shown_unit(name, metric["unit"])})

    def unsupported(self, name: str) -> str | None:
        """Why a TTFT tail may not be claimed, ``n < 1000, not reported``; None for any other metric."""
        metric = self.metric(name)
        required = SAMPLES_REQUIRED.get(metric_name(name).statistic, 0)
        if metric is None or not self._binds(name) or metric["n"] >= required:
            return None
        return f"n < {required}, not reported"

    def _binds(self, name: str) -> bool:
        """Whether the sample floors of section 5.1.4.3 apply: to the TTFT test alone (AMB-47)."""
        return bool(self.entry["test"] == "ttft") and name.startswith("ttft")

    @property
    def levels(self) -> Sequence[Entry]:
        return list(self.entry.get("levels") or ())

    @property
    def reported_level(self) -> Entry | None:
        """The level whose figures stand for the test; None where there is none."""
        return next((level for level in self.levels if level.get("role") == "reported"), None)

    @property
    def _owners(self) -> list[str | None]:
        """For each load the test that measured it; None: this one."""
        loads: list[Entry] = [*(self.entry.get("stretches") or ())]
        loads += [level for level in self.levels if level.get("stretch") is None]
        return [load.get("shared_from") for load in loads]

    @property
    def measured_by(self) -> str:
        """The node id of the test that measured all loads of this one; its own where these are several."""
        owners = set(self._owners)
        return next(iter(owners)) or self.nodeid if len(owners) == 1 else self.nodeid

    @property
    def sharing(self) -> list[str]:
        """A line for each other test whose measurement this test used."""
        owners = self._owners
        texts = []
        for owner in dict.fromkeys(owner for owner in owners if owner):
            count = owners.count(owner)
            part = "" if count == len(owners) else f"{count} of {len(owners)} loads "
            texts.append(f"shared measurement: {part}measured by {owner}")
        return texts

    @property
    def void_loads(self) -> list[str]:
        """Void loads in words, ``2 loads were void because of this machine and measured again: measure``;
        else empty."""
        found = list(self.entry.get("void_loads") or ())
        if not found:
            return []
        labels = ", ".join(dict.fromkeys(str(void["label"]) for void in found))
        were = "was" if len(found) == 1 else "were"
        loads = numbers.counted(len(found), "load")
        return [f"{loads} {were} void because of this machine and measured again: {labels}"]

    @property
    def next_class(self) -> tuple[str, list[Entry]] | None:
        """The next better compliance class and the unmet requirements that it needs; None at the top."""
        compliance = self.entry["compliance"]
        if not self.requirements or compliance["verdict"] == "unconditional":
            return None
        told = compliance.get("next_class")
        if told is None:
            better = "conditional" if compliance["verdict"] == "not_compliant" else "unconditional"
            effects = ("blocks",) if better == "conditional" else ("blocks", "downgrades")
            return better, self.unmet(*effects)
        by_id = {requirement["id"]: requirement for requirement in self.requirements}
        return str(told["class"]), [by_id[clause] for clause in told["clauses"] if clause in by_id]

    @property
    def completed(self) -> tuple[int, int]:
        """Number of requests that ended well, and of those that could: all but those that their users were to
        cut."""
        counts = self.entry["counts"]
        return counts.get("ok", 0), counts.get("submitted", 0) - counts.get(Outcome.CUT_BY_USER, 0)

    @property
    def completed_text(self) -> str:
        """Completed requests as text, ``998 of 1000``; empty for a test that measured nothing."""
        ok, of = self.completed
        return f"{ok} of {of}" if self.measured else ""

    @property
    def completion(self) -> str:
        """Completion in words: ``998 of 1000 requests completed (99.8 %); 2 timeout; beside them 250 cut by
        their users``."""
        counts, (ok, of) = self.entry["counts"], self.completed
        if not counts.get("submitted", 0):
            return "no request was submitted"
        failed = ", ".join(
            f"{count} {words(name)}" for name, count in counts.items() if name not in NO_FAILURES and count
        )
        share = f" ({numbers.percentage(ok / of)})" if of else ""
        cut = counts.get(Outcome.CUT_BY_USER, 0)
        beside = f"the plan cuts another {cut}" if cut else ""
        return "; ".join(filter(None, (f"{ok} of {of} requests completed{share}", failed, beside)))

    @property
    def load_text(self) -> str:
        """The load, and of a closed loop what its figures are of."""
        load, wave = self.entry["load"], self.fact(LoadFact.FIRST_WAVE)
        if load is None:
            return numbers.NOT_MEASURED
        return str(load["description"]) + ("" if wave is None else f", {_FIRST_WAVES[wave]}")

    @property
    def missing_facts(self) -> list[str]:
        """Keys that the SUT file could declare, and without which a requirement is unmet."""
        lacking = [r for r in self.unmet("blocks", "downgrades") if "no evidence" in r["reason"]]
        named = (key for requirement in lacking for key in _FACT_KEY.findall(requirement["reason"]))
        return list(dict.fromkeys(key for key in named if key.startswith(_DECLARABLE)))

    @property
    def plots(self) -> dict[str, Entry]:
        """Plots by id. On a TTFT distribution of one arm, the percentiles that may be claimed are marked."""
        found = dict(self.entry["plots"])
        if "ttft_cdf" in found and len(found["ttft_cdf"]["series"]) == 1:
            marks = {}
            for statistic in ("p50", "p99"):
                metric = self.metric(f"ttft.{statistic}")
                if metric and metric["point"] is not None and not self.unsupported(f"ttft.{statistic}"):
                    marks[statistic_label(statistic)] = metric["point"]
            plot = found["ttft_cdf"]
            found["ttft_cdf"] = {**plot, "marks": marks | dict(plot["marks"])}
        return found

    def picture(self, plot_id: str) -> str:
        """What a plot shows but for its marks: the same one of tests that share a measurement."""
        return f"{self.measured_by} {plot_id} {self.entry['plots'][plot_id]['series']}"

    @property
    def next_steps(self) -> list[str]:
        """Lines on what would turn a poor compliance class into a better one."""
        missing = self.missing_facts
        return ["declare in the SUT file (--llm-sut): " + ", ".join(missing)] if missing else []


def finding_word(finding: Entry) -> tuple[str, str]:
    """The state of a finding in a word, and its tone."""
    if finding["ok"]:
        return "ok", "good"
    return ("voids the run", "bad") if finding["voids"] else ("warning", "warn")


def objective_text(objective: Entry) -> str:
    """An objective as text: ``ttft.p99 <= 500 ms``."""
    unit = shown_unit(objective["metric"], objective["unit"])
    return f"{objective['metric']} {objective['op']} {numbers.quantity(objective['limit'], unit)}"


def measured_text(objective: Entry, *, doubt: bool = True) -> str:
    """The measured value of an objective, with enough digits to be told from the limit.

    ``doubt``: with what this machine may have done to it.
    """
    unit = shown_unit(objective["metric"], objective["unit"])
    if objective["point"] is None:
        if objective["lower"] is None and objective["upper"] is None:
            return numbers.NOT_MEASURED
        return numbers.interval(objective["lower"], objective["upper"], unit)
    point = numbers.against(objective["point"], objective["limit"], unit)
    machine = numbers.machine_doubt(objective, unit) if doubt else ""
    if objective["lower"] == objective["upper"] == objective["point"]:
        return f"{point}{machine}"
    ends = numbers.interval(objective["lower"], objective["upper"], unit, objective.get("n"))
    return f"{point} {ends}{machine}" if ends.startswith("[") else f"{point} ({ends}){machine}"


def views(entries: Iterable[Entry]) -> list[TestView]:
    """A view over each entry; equal names of several files are shown with their files."""
    tests = [TestView(entry) for entry in entries]
    whose: dict[str, set[str]] = {}
    for test in tests:
        whose.setdefault(test.name, set()).add(test.nodeid)
    return [TestView(test.entry, with_file=len(whose[test.name]) > 1) for test in tests]


_SHOWN_TESTS = 10
_OF_ONE_RUN = ("workload.", "load.", "warmup.", "timing.", COLD_START)


@dataclass(frozen=True)
class ReportView:
    """The view over a whole report."""

    report: Entry

    @cached_property
    def tests(self) -> tuple[TestView, ...]:
        return tuple(views(self.report["tests"]))

    @property
    def simulated(self) -> str | None:
        """The statement that nothing was sent, for the head of every artefact; None if something was sent."""
        virtual = [test for test in self.tests if test.simulated]
        if not virtual:
            return None
        which = "" if len(virtual) == len(self.tests) else f" ({len(virtual)} of {len(self.tests)} tests)"
        return f"Simulated{which}: nothing was sent, the embedded engine ran in virtual time."

    @property
    def incomplete(self) -> str | None:
        """The statement on what is missing because the session did not end properly, for the head of every
        artefact; else None."""
        found = self.report.get("incomplete")
        return None if found is None else incomplete_text(found)

    def fact(self, key: Key[Value]) -> Value | None:
        """A fact about the SUT: as declared for the session, else as found by a test; None if it is
        unknown."""
        sources = [self.report["sut"]["facts"], *(test.entry.get("facts") or {} for test in self.tests)]
        return next((facts[key]["value"] for facts in sources if key in facts), None)

    @property
    def facts(self) -> dict[str, Entry]:
        """All facts about the SUT and its surroundings, without those that belong to one run."""
        found: dict[str, Entry] = {}
        for test in self.tests:
            found |= test.entry.get("facts") or {}
        found |= self.report["sut"]["facts"]
        return {key: fact for key, fact in sorted(found.items()) if not key.startswith(_OF_ONE_RUN)}

    @property
    def tally(self) -> str:
        """Numbers of tests by headline: ``1 PASS, 2 INCONCLUSIVE``."""
        headlines = [test.headline for test in self.tests]
        counts = ", ".join(f"{headlines.count(word)} {word}" for word in dict.fromkeys(headlines))
        return (counts or "no test ran") + (", INCOMPLETE" if self.incomplete else "")

    @property
    def model(self) -> str:
        name = self.fact(SUTFact.MODEL_NAME) or self.report["sut"]["model"]
        # The version of a simulated model is the digest of its settings, which says nothing to a reader.
        told = self.facts.get(SUTFact.MODEL_VERSION)
        version = None if told is None or told["origin"] == Origin.SIMULATED else told["value"]
        parts = [name, version, self.fact(SUTFact.MODEL_QUANTIZATION)]
        return " ".join(str(part) for part in parts if part not in (None, "none")) or "not declared"

    @property
    def hardware(self) -> str:
        if self.fact(SUTFact.HARDWARE_DISCLOSED) is False:
            return "undisclosed"
        kind, count = self.fact(SUTFact.ACCELERATOR_TYPE), self.fact(SUTFact.ACCELERATOR_COUNT)
        if kind is None:
            return "not declared"
        return f"{kind} x {count}" if count is not None else str(kind)

    @property
    def software(self) -> str:
        parts = [self.fact(SUTFact.SOFTWARE_ENGINE), self.fact(SUTFact.SOFTWARE_VERSION)]
        return " ".join(str(part) for part in parts if part is not None) or "not declared"

    @property
    def boundary(self) -> str:
        declared = self.fact(SUTFact.BOUNDARY)
        return _BOUNDARIES.get(str(declared), str(declared)) if declared is not None else "not declared"


def warnings_of(tests: Iterable[TestView]) -> list[str]:
    """Warnings of all tests, each once, with the number of tests that have it."""
    found: Counter[str] = Counter()
    for test in tests:
        told = [f"{one['check']}: {one['message']}" for one in test.warnings]
        told += test.advisory_not_kept
        found.update(list(dict.fromkeys([*told, *test.void_loads])) if test.measured else ())
    return [text if count == 1 else f"{text} ({count} tests)" for text, count in found.items()]


def incomplete_text(found: Entry) -> str:
    """What a session that did not end properly lacks (``incomplete`` of a report), in words."""
    unfinished = [test["nodeid"] for test in found["unfinished"]]
    parts = [f"INCOMPLETE: {found['why']}."]
    if unfinished:
        parts.append(f"Begun, and without a result: {_listed(unfinished)}.")
    if found["not_begun"]:
        parts.append(f"Not begun: {_listed(found['not_begun'])}.")
    if found["damaged_lines"]:
        parts.append(f"Lines of the journal that could not be read: {found['damaged_lines']}.")
    return " ".join(parts)


def _listed(nodeids: Sequence[str]) -> str:
    more = len(nodeids) - _SHOWN_TESTS
    return ", ".join(nodeids[:_SHOWN_TESTS]) + (f" and {more} more" if more > 0 else "")


_NOT_KEPT = {"fail": "is broken", "inconclusive": "is undecided"}
_BOUNDARIES = {
    "model_engine": "Model Engine",
    "application_gateway": "Gateway",
    "compound_system": "Compound",
}
"""Boundary → its name in appendix C.1."""
