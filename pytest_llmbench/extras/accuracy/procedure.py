"""Accuracy: does the system still answer rightly, asked as its load is asked?

No test of the draft. MLCommons, and the suites of engines, hold the figures of a fast system to a data set of
questions, so that no speed is bought with wrong answers. The questions go by the same path and with the same
parameters as every other load, in a closed loop of their own, and no latency is reported of them. A share of
questions in any other load tells the same while the system is busy (``metrics/ratios.py``).

Two limits for two claims. ``min_share`` is about such questions at large, and is judged on the interval of
Clopper and Pearson. ``golden`` is what a trusted system scored with *these very questions*; nothing is
sampled there, so the share itself decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from pytest_llmbench.errors import StoreError, SuiteError, shown
from pytest_llmbench.input_files import parse_json, read_bytes
from pytest_llmbench.methodology.measuring.adaptive import fewest_requests
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.load_plans import part_of
from pytest_llmbench.methodology.measuring.manifest import bare_result
from pytest_llmbench.methodology.parameters import DEFAULT_CONCURRENCY, TestParameters, parameter
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.metrics.ratios import ACCURACY, ACCURACY_OF_SET, accuracy, checks, counts
from pytest_llmbench.metrics.throughput import completion_rate
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.numbers import Cell, Row, cells, number
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import Records, split_by_class
from pytest_llmbench.model.reply_checks import RIGHT, check_of
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import Table, TestResult, WarmupReport, metric_table
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.store.datasets import MAX_ANSWER_TOKENS, file_sha256, read_rows, scored_prompts
from pytest_llmbench.store.files import read_report
from pytest_llmbench.store.schema import Report, TestEntry
from pytest_llmbench.workloads.catalogue import workload as find_workload
from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload
from pytest_llmbench.workloads.synthetic import ARITHMETIC_NAME as ARITHMETIC

HEADING = Heading("accuracy", "", "Accuracy")
MAIN_METRICS = (ACCURACY,)

USUAL_QUESTIONS = 1000
"""The most questions where the author names no number."""
QUICK_QUESTIONS = 50
_MOST_SHOWN = 5
"""Wrong answers that the report shows."""


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """Questions with known answers, in a closed loop; how many are answered rightly.

    A question whose request fails is not answered rightly.
    """

    of_the_draft = False
    takes_adapters = False

    workload: str | Workload = parameter(
        "workload",
        ARITHMETIC,
        doc="a workload whose requests have an expected answer: ``arithmetic`` (sums drawn from the "
        "seed), or one of ``--llm-workloads`` with a ``scorer``. Otherwise give ``dataset``.",
    )
    dataset: str | None = parameter(
        "text", doc="file of questions (JSON, JSONL, CSV, Parquet) instead of ``workload``."
    )
    scorer: str | None = parameter(
        "text",
        doc="how answers of ``dataset`` are scored: ``exact`` (default), ``number``, ``choice``, "
        "``contains``, ``regex:PATTERN`` or ``python:MODULE:FUNCTION``.",
    )
    prompt_field: str | None = parameter(
        "text", doc="field of ``dataset`` with the prompt; default: the usual names."
    )
    answer_field: str | None = parameter(
        "text", doc="field of ``dataset`` with the answer; default: the usual names."
    )
    max_tokens: int | None = parameter(
        "count", doc="output limit of each question of ``dataset`` (default 256)."
    )
    questions: int | None = parameter(
        "count", doc="number of questions; default: the whole data set, at most 1000."
    )
    concurrency: int = parameter("count", DEFAULT_CONCURRENCY, doc="questions in flight.")
    min_share: float | None = parameter(
        "share",
        doc="least share of right answers to questions like these, judged on the whole confidence interval.",
    )
    golden: float | str | None = parameter(
        "share_or_file",
        doc="share of right answers that a trusted system gave to exactly these questions; or the file "
        "that holds it: ``report.json`` of a session, or a JSON object that maps workload names to "
        "shares.",
    )
    min_of_golden: float = parameter(
        "share", 0.99, doc="least share of right answers, as a fraction of ``golden``."
    )

    def __post_init__(self) -> None:
        if self.dataset is not None and self.workload == ARITHMETIC:
            asked = questions(
                self.dataset,
                scorer=self.scorer or "exact",
                prompt_field=self.prompt_field or "",
                answer_field=self.answer_field or "",
                max_tokens=self.max_tokens or MAX_ANSWER_TOKENS,
            )
            object.__setattr__(self, "workload", asked)
        if isinstance(self.golden, str):
            object.__setattr__(self, "golden", golden_share(self.golden, find_workload(self.workload)))

    @property
    def objectives(self) -> tuple[Objective, ...]:
        own = []
        if self.min_share is not None:
            own.append(Objective(ACCURACY, ">=", self.min_share, "ratio"))
        if isinstance(self.golden, float | int):
            own.append(Objective(ACCURACY_OF_SET, ">=", self.golden * self.min_of_golden, "ratio"))
        return (*own, *self.slo)

    def contradictions(self) -> list[str]:
        return [
            f"{name} needs dataset: it says how the file is read"
            for name in ("scorer", "prompt_field", "answer_field", "max_tokens")
            if self.dataset is None and getattr(self, name) is not None
        ]

    def undecidable(self) -> list[str]:
        asked = self.questions or _size(find_workload(self.workload))
        return [
            f"{each} needs at least {number(fewest)} questions to be decided, there are {asked}"
            for each in self.objectives
            if asked < (fewest := fewest_requests(each))
        ]


def _size(workload: Workload) -> int:
    """The questions of a data set, as far as they are asked by default; of any other workload as many."""
    entries = workload.specification()["input_length"]["params"].get("entries", USUAL_QUESTIONS)
    return min(int(entries), USUAL_QUESTIONS)


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The one load of the test: each question once, in the order that the seed gives."""
    count = parameters.questions or _size(setting.workload)
    if setting.scale == "quick":
        count = min(count, QUICK_QUESTIONS)
    part = part_of(setting, setting.workload, "questions", concurrency=parameters.concurrency, count=count)
    load = ClosedLoop(min(parameters.concurrency, count))
    return (part.plan(setting, "questions", load, count, ignore_eos=False),)


def procedure(parameters: Parameters, setting: Setting) -> Procedure[TestResult]:
    seen = yield plans(parameters, setting)[0]
    return result(parameters, setting, WarmupReport(), (seen,))


def needs(parameters: Parameters, setting: Setting) -> Sequence[str]:  # noqa: ARG001 - the signature is the contract
    asked = setting.workload.requests(QUICK_QUESTIONS, setting.seed)
    if any(request.expected is not None for request in asked):
        return ()
    return (
        f"questions: no request of workload {setting.workload.name!r} has an expected answer (name "
        'dataset="questions.jsonl", or give the workload a scorer in its file)',
    )


def result(
    parameters: Parameters, setting: Setting, warmup: WarmupReport, seen: Sequence[Observation]
) -> TestResult:
    records = [run.records for run in seen]
    classes = split_by_class(records)
    metrics: dict[str, Estimate] = accuracy(records) | {"completion_rate": completion_rate(records)}
    for label, own in classes.items():
        metrics |= {f"{name}[{label}]": each for name, each in accuracy(own).items()}
    return replace(
        bare_result(HEADING, parameters, setting, warmup, seen, plans(parameters, setting)),
        metrics=metrics,
        tables=tuple(_tables(metrics, records, classes)),
        # How replies came is nobody's business here: a buffer on the way does not void what they say.
        observations=tuple(replace(run, records=run.records.without_streams()) for run in seen),
        notes=(Note.of("outside_draft", test=HEADING.test),),
    )


_CHECKS = {
    "right": "Right answers",
    "wrong": "Wrong answers",
    "no_answer": "Replies without an answer",
    "cut_by_limit": "Cut by the output limit",
    "unanswered": "Failed requests",
    "scorer_failed": "The scorer failed",
}


def _tables(
    metrics: Mapping[str, Estimate],
    records: Sequence[Records],
    classes: Mapping[str, Sequence[Records]],
) -> Iterator[Table]:
    found = counts(records)
    rows: list[tuple[str, Cell]] = [("Questions", sum(found.values()))]
    rows += [(_CHECKS[check], count) for check, count in found.items()]
    shown = {ACCURACY: "Accuracy", ACCURACY_OF_SET: "Accuracy of just these"}
    rows += zip(shown.values(), cells(metrics, shown), strict=True)
    yield metric_table("accuracy_results", "Accuracy", rows)
    by_class: list[Row] = [
        (label, sum(map(len, checks(own))), *cells(metrics, (f"{ACCURACY}[{label}]",)))
        for label, own in classes.items()
    ]
    if by_class:
        columns = ("Class", "Questions", "Accuracy")
        yield Table("accuracy_by_class", "Accuracy by Class", columns, tuple(by_class))
    # As the scorer understood the answers.
    wrong: list[Row] = [
        (int(index), _CHECKS[check_of(told)], told.partition(": ")[2])
        for run in records
        for index, told in zip(run.index.tolist(), run.answer_check, strict=True)
        if told is not None and told != RIGHT
    ]
    if wrong:
        columns = ("Question", "Check", "Taken for the answer")
        first = tuple(wrong[:_MOST_SHOWN])
        yield Table("accuracy_wrong", "First Answers that Are Not Right", columns, first)


def no_warmup(parameters: Parameters, setting: Setting) -> Sequence[Workload]:  # noqa: ARG001 - the signature is the contract
    """No time is measured, and questions would be asked twice."""
    return ()


TEST = TestDefinition(*HEADING, Parameters, procedure, plans, needs, no_warmup, result=result)


def questions(
    path: str | Path,
    *,
    scorer: str = "exact",
    prompt_field: str = "",
    answer_field: str = "",
    max_tokens: int = MAX_ANSWER_TOKENS,
) -> DatasetWorkload:
    """The workload of a file of questions, whose replies are scored. Paths are relative to the current
    directory.

    ``scorer``: see :class:`~pytest_llmbench.model.reply_checks.ExpectedAnswer`. Raises SuiteError that names
    the row for a question without prompt or answer, or with an answer that the scorer cannot use.
    """
    file = Path(path).expanduser().absolute()
    try:
        changed_ns = file.stat().st_mtime_ns
    except (OSError, ValueError) as error:  # a name with a NUL or a lone surrogate is no file's
        raise SuiteError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}",
            where=f"dataset {shown(str(path))}",
            remedy="name a file of questions; a relative path begins at the current directory",
        ) from error
    return _read(file, changed_ns, scorer, prompt_field, answer_field, max_tokens)


@lru_cache(maxsize=8)
def _read(
    file: Path,
    changed_ns: int,  # noqa: ARG001 - so that a file that was written anew is read anew
    scorer: str,
    prompt_field: str,
    answer_field: str,
    max_tokens: int,
) -> DatasetWorkload:
    prompts = scored_prompts(read_rows(file), file, scorer, max_tokens, prompt_field, answer_field)
    digest = file_sha256(file)
    identity = DatasetIdentity(file.name, digest[:12], "all", file_sha256=digest)
    return DatasetWorkload(file.stem, prompts, identity)


_IDENTITY: Final = ("dataset", "generation")
"""The parts of a specification that say which questions there are."""
_GIVE: Final = "give the share itself, such as golden=0.83"


def golden_share(path: str, workload: Workload) -> float:
    """The share that the file states for the questions of ``workload``.

    ``path`` begins at the current directory. Raises SuiteError where the file has no share of just these
    questions, or more than one.
    """
    file = Path(path).expanduser()
    try:
        content = parse_json(read_bytes(file))
        if isinstance(content, dict) and "schema_version" in content:
            return _of_report(read_report(file), path, workload)
    except (OSError, ValueError, StoreError) as error:
        why = getattr(error, "strerror", None) or getattr(error, "what", None) or error
        raise SuiteError(f"cannot be read: {why}", where=f"golden {shown(path)}", remedy=_GIVE) from error
    share = content.get(workload.name) if isinstance(content, dict) else None
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        what = f"states no share from 0 to 1 for {workload.name!r}"
        remedy = f'write {{"{workload.name}": 0.83}}, or name the report.json of a session'
        raise SuiteError(what, where=f"golden {shown(path)}", remedy=remedy)
    return float(share)


def _of_report(report: Report, path: str, workload: Workload) -> float:
    asked = {name: workload.specification().get(name) for name in _IDENTITY}
    entries = [each for each in report.tests if each.test == HEADING.test and _share(each) is not None]
    alike = [
        each
        for each in entries
        if each.workload is not None
        and {name: each.workload.specification.get(name) for name in _IDENTITY} == asked
    ]
    shares = {_share(each) for each in alike}
    share = next(iter(shares)) if len(shares) == 1 else None
    if share:
        return share
    listed = ", ".join(each.nodeid for each in alike or entries) or "no test with a share"
    several = f"its tests have {len(shares)} shares of right answers to these questions: {listed}"
    what = (
        (several if share is None else f"its share of right answers to these questions is 0: {listed}")
        if alike
        else f"no accuracy test in it was measured with the questions of {workload.name!r}; it has {listed}"
    )
    raise SuiteError(what, where=f"golden {shown(path)}", remedy=_GIVE)


def _share(entry: TestEntry) -> float | None:
    found = entry.metrics.get(ACCURACY_OF_SET)
    return None if found is None else found.point
