"""The files of workloads: those that ``--llm-workloads`` reads, in TOML, which markers may name (length laws,
data sets, traces), and those that ``--llm-records=sequence`` writes, the exact requests of a test beside its
report (appendix A.1.4)."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.harness.workloads.exact_lengths import ExactLengths
from pytest_llmbench.harness.workloads.factory import make_workload
from pytest_llmbench.input_files import SMALL_BYTES, parse_toml, read_bytes
from pytest_llmbench.model.facts import Facts, Origin, WorkloadFact
from pytest_llmbench.model.messages import Modality, Piece
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.request import Answers, Workload
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.store.datasets import (
    HOW,
    MAX_ANSWER_TOKENS,
    code_texts,
    conversations,
    exercises,
    file_sha256,
    function_prompts,
    read_rows,
    scored_prompts,
)
from pytest_llmbench.store.files import whole_file
from pytest_llmbench.store.media_rows import rows_with_media
from pytest_llmbench.store.perf_catalogue import CatalogueEntry, read_catalogue
from pytest_llmbench.store.traces.reading import read_conversations, read_trace
from pytest_llmbench.store.traces.sessions import sessions_of_trace
from pytest_llmbench.store.traces.sources import Meaning, TimeUnit
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import cuts_of
from pytest_llmbench.workloads.catalogue import with_answers, with_cuts
from pytest_llmbench.workloads.dataset import (
    LANGUAGES,
    SHAREGPT,
    THE_STACK,
    CodeCompletionWorkload,
    CodeFunction,
    ConversationWorkload,
    DatasetIdentity,
    DatasetWorkload,
    Prompt,
    contexts_from,
)
from pytest_llmbench.workloads.lengths import (
    MOST_TOKENS,
    Choice,
    Empirical,
    Fixed,
    LengthLaw,
    LogNormal,
    Normal,
    Uniform,
)
from pytest_llmbench.workloads.sequence import drawn, sequence_json
from pytest_llmbench.workloads.trace import TraceWorkload
from pytest_llmbench.workloads.trace_sessions import TraceSessionWorkload

FOLDER = "sequence"
_PLAIN_REQUESTS = 1_000
"""The most requests of a sequence that is written uncompressed."""
_AT_ONCE = 256

EXPORT_SEQUENCE = "--llm-records=sequence"
EXPORTED_BEFORE = "--llm-export-sequence"
"""The source of these facts in reports of the versions before."""


def with_sequence_files(result: TestResult, report: Path) -> TestResult:
    """Write the sequences of the result's measured load, and say so among its facts.

    A file holds requests 0 to the last one that was planned, so the load of every level is a slice of it. It
    is ``WORKLOAD-SEED-COUNT.json``, compressed with gzip when it is long.
    """
    wanted: dict[tuple[str, int], tuple[Workload, int]] = {}
    for run in result.observations:
        plan = run.plan
        if plan.phase is Phase.MEASURE:
            workload, length = wanted.get((plan.workload.name, plan.seed), (plan.workload, 0))
            sent = max(plan.requests, len(run.records))
            wanted[plan.workload.name, plan.seed] = (workload, max(length, plan.first + sent))
    files = [
        _written(report / FOLDER, workload, seed, length)
        for (_, seed), (workload, length) in wanted.items()
        if length
    ]
    if not files:
        return result
    facts = {WorkloadFact.PUBLISHED: "sequence", WorkloadFact.SEQUENCE_FILES: files}
    return replace(result, facts=result.facts | Facts.of(Origin.GENERATOR, facts, EXPORT_SEQUENCE))


def _written(folder: Path, workload: Workload, seed: int, length: int) -> dict[str, Any]:
    """Write one sequence; returns what the report says about it."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", workload.name)
    if not workload.standard:  # another of that name may have other parameters
        stem += f"-{hashlib.sha256(repr(sorted(workload.specification().items())).encode()).hexdigest()[:8]}"
    stem += f"-{seed}-{length}"
    path = folder / f"{stem}.json{'.gz' if length > _PLAIN_REQUESTS else ''}"
    digest = hashlib.sha256()
    with whole_file(path) as temporary, temporary.open("wb") as raw:
        # No name and no time in the gzip header: the same sequence gives the same bytes.
        packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else None
        for piece in _pieces(workload, seed, length):
            digest.update(piece)
            (packed or raw).write(piece)
        if packed is not None:
            packed.close()
    return {
        "file": f"{FOLDER}/{path.name}",
        "workload": workload.name,
        "seed": seed,
        "requests": length,
        "sha256": digest.hexdigest(),
    }


def _pieces(workload: Workload, seed: int, length: int) -> Iterator[bytes]:
    """The compact JSON text of the sequence, some requests at a time."""
    yield b"["
    for first in range(0, length, _AT_ONCE):
        part = sequence_json(drawn(workload, first, min(_AT_ONCE, length - first), seed))
        yield (("," if first else "") + part[1:-1]).encode()
    yield b"]"


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Positive = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Rows = Iterable[Mapping[str, Any]]
_LAWS: Mapping[str, tuple[Callable[..., LengthLaw], tuple[str, ...]]] = {
    "fixed": (Fixed, ("tokens",)),
    "uniform": (Uniform, ("min", "max")),
    "normal": (Normal, ("mean", "sd", "min", "max")),
    "lognormal": (LogNormal, ("mu", "sigma", "min", "max")),
    "choice": (Choice, ("tokens",)),
    "empirical": (Empirical, ("tokens",)),
}
"""Kind of a length law → the law, and the figures that it is made of, in their order."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Law(_Table):
    """A length distribution: ``{ kind = "normal", mean = 300, sd = 50, min = 1, max = 600 }``, or just a
    number."""

    kind: Literal["fixed", "uniform", "normal", "lognormal", "choice", "empirical"]
    tokens: int | list[int] | None = None
    weights: list[float] | None = None
    min: int | None = None
    max: int | None = None
    mean: float | None = None
    sd: float | None = None
    mu: float | None = None
    sigma: float | None = None

    def law(self) -> LengthLaw:
        """The length distribution. Raises SuiteError if figures are missing, too many or impossible."""
        make, needed = _LAWS[self.kind]
        given = self.model_dump(exclude={"kind"}, exclude_none=True)
        taken = (*needed, "weights") if self.kind == "empirical" else needed
        mistakes = [f"{name} is missing" for name in needed if name not in given]
        mistakes += [f"{name} has no meaning here" for name in given if name not in taken]
        if self.kind == "fixed" and isinstance(self.tokens, list):
            mistakes.append("tokens is a list: give one number")
        if mistakes:
            raise SuiteError(f"length law {self.kind}: {', '.join(mistakes)}")
        if self.kind in ("choice", "empirical") and isinstance(self.tokens, int):
            given["tokens"] = [self.tokens]
        figures = (given[name] for name in taken if name in given)
        return make(*(tuple(each) if isinstance(each, list) else each for each in figures))


class Media(_Table):
    """Pieces beside each prompt, with the keys of ``make_workload``, or how many: numbers or laws,
    ``seconds`` also a pair; ``files`` relative to the file of workloads."""

    count: int | Law | None = None
    width: int | Law | None = None
    height: int | Law | None = None
    seconds: float | list[float] | None = None
    files: Text | list[Text] | None = None
    repeated: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _counted(cls, value: Any) -> Any:
        return {"count": value} if isinstance(value, int) else value

    def given(self, folder: Path) -> dict[str, Any]:
        """The argument of ``make_workload``."""
        found = {
            key: value.law() if isinstance(value, Law) else value
            for key in type(self).model_fields
            if (value := getattr(self, key)) is not None
        }
        if isinstance(self.seconds, list):
            found["seconds"] = tuple(self.seconds)
        if self.files is not None:
            named = [self.files] if isinstance(self.files, str) else self.files
            found["files"] = [folder / Path(each).expanduser() for each in named]
        return found


class _Workload(_Table):
    """A ``[workloads.NAME]`` table, a class for each ``kind``."""

    cut_share: float | None = None
    cut_after_s: float | list[float] | None = None
    images: Media | None = None
    audio: Media | None = None
    videos: Media | None = None

    def made(self, name: str, folder: Path) -> Workload:
        """The workload of a table that lies in ``folder``. Raises SuiteError for an impossible one."""
        raise NotImplementedError(type(self).__name__)

    def told(self, name: str, folder: Path) -> Workload:
        """:meth:`made`, with what every kind takes."""
        after_s = tuple(self.cut_after_s) if isinstance(self.cut_after_s, list) else self.cut_after_s
        cuts, made = cuts_of(self.cut_share, after_s), self.made(name, folder)
        made = made if cuts is None else with_cuts(made, cuts)
        given: dict[str, Any] = {
            key: value.given(folder)
            for key in ("images", "audio", "videos")
            if (value := getattr(self, key)) is not None
        }
        return make_workload(made, **given) if given else made


class _Synthetic(_Workload):
    kind: Literal["synthetic"] = "synthetic"
    input_tokens: Positive | Law
    output_tokens: Positive | Law
    exact: bool = False

    def made(self, name: str, folder: Path) -> Workload:  # noqa: ARG002 - nothing is read
        lengths = (self.input_tokens, self.output_tokens)
        inputs, outputs = (own.law() if isinstance(own, Law) else own for own in lengths)
        made = make_workload(name, input_tokens=inputs, output_tokens=outputs)
        return ExactLengths(made) if self.exact else made


class _OfPerf(_Workload):
    kind: Literal["inference-perf"]
    path: Text

    def made(self, name: str, folder: Path) -> Workload:
        return catalogue_workload(name, read_catalogue(folder / Path(self.path).expanduser()))


class _DataSet(_Workload):
    """A table of a data set. The names ``conversation`` and ``code-completion`` can only be used with the
    data set that the draft names."""

    done_here: ClassVar[tuple[str, ...]] = ()
    """Steps of the preprocessing that reading it is."""

    path: Text
    format: Literal["json", "jsonl", "csv", "parquet"] | None = None
    dataset: Text
    version: Text
    subset: Text | None = None
    subset_method: Text
    preprocessing: list[Text] = []

    def made(self, name: str, folder: Path) -> Workload:
        path = folder / Path(self.path).expanduser()
        identity = DatasetIdentity(
            name=self.dataset,
            version=self.version,
            subset=self.subset or "",
            subset_method=self.subset_method,
            preprocessing=(*self.preprocessing, *self.done_here),
            file_sha256=file_sha256(path),
        )
        return self.of(name, path, identity)

    def rows(self, path: Path) -> Rows:
        return read_rows(path, self.format)

    def of(self, name: str, path: Path, identity: DatasetIdentity) -> Workload:
        raise NotImplementedError(type(self).__name__)


class Conversations(_DataSet):
    kind: Literal["conversation"] = "conversation"
    dataset: Text = SHAREGPT[0]
    done_here = (
        "conversations without a human and a following assistant turn left out",
        "first human turn as prompt, length of the first assistant turn as output limit",
    )

    def of(self, name: str, path: Path, identity: DatasetIdentity) -> Workload:
        return ConversationWorkload(tuple(conversations(self.rows(path), path)), identity, name)


class _Code(_DataSet):
    kind: Literal["code-completion"]
    dataset: Text = THE_STACK
    done_here = (HOW, "repository contexts cut from the source texts in file order")
    languages: list[Text] = list(LANGUAGES)

    def of(self, name: str, path: Path, identity: DatasetIdentity) -> Workload:
        texts = code_texts(self.rows(path), path, tuple(self.languages))
        functions = tuple(
            CodeFunction(prompt, language)
            for language, text in texts
            for prompt in function_prompts(language, text)
        )
        if not functions:
            raise SuiteError(
                "its source texts contain no function",
                where=str(path),
                remedy="give files of the data set, or whole functions, one per row",
            )
        contexts = contexts_from([text for _, text in texts])
        return CodeCompletionWorkload(functions, contexts, identity, name)


class _Prompts(_DataSet):
    kind: Literal["dataset"]
    prompt_field: Text | None = None
    answer_field: Text | None = None
    scorer: Text | None = None
    max_tokens: Positive | None = None
    domain: Text | None = None
    language: Text | None = None
    shuffled: bool | None = None
    image_field: Text | list[Text] | None = None
    audio_field: Text | list[Text] | None = None
    video_field: Text | list[Text] | None = None

    def of(self, name: str, path: Path, identity: DatasetIdentity) -> Workload:
        fields = self.prompt_field or "", self.answer_field or ""
        asked = self.model_dump(include={"domain", "language", "shuffled"}, exclude_none=True)
        named = {"image": self.image_field, "audio": self.audio_field, "video": self.video_field}
        columns = {
            modality: [told] if isinstance(told, str) else told or []
            for modality, told in cast("dict[Modality, str | list[str] | None]", named).items()
        }
        limit = self.max_tokens
        rows, media, steps, wrong = rows_with_media(self.rows(path), path, columns, fields[0])
        identity = replace(identity, preprocessing=(*identity.preprocessing, *steps))
        if self.scorer is not None:
            most = limit or MAX_ANSWER_TOKENS
            scored = scored_prompts(rows, path, self.scorer, most, *fields, further=wrong)
            return DatasetWorkload(name, _beside(scored, media), identity, **asked)
        found = exercises(rows, path, *fields, answered=limit is None, further=wrong)
        count = reference_tokenizer().count
        prompts = tuple(
            Prompt(prompt, limit if limit is not None else max(1, count(answer or "")))
            for prompt, answer in found
        )
        return DatasetWorkload(name, _beside(prompts, media), identity, **asked)


def _beside(prompts: Iterable[Prompt], media: Iterable[tuple[Piece, ...]]) -> tuple[Prompt, ...]:
    return tuple(replace(prompt, media=own) for prompt, own in zip(prompts, media, strict=True))


class _Trace(_DataSet):
    kind: Literal["trace"]
    trace_format: str | None = None
    block_tokens: Positive | None = None
    time_unit: TimeUnit | None = None
    sessions: bool = False
    messages: bool = False
    answers: Answers | None = None

    @model_validator(mode="after")
    def _of_sessions(self) -> Self:
        given = {"messages": self.messages, "answers": self.answers}
        told = [f"{name} are for sessions: add sessions = true" for name in given if given[name]]
        if told and not self.sessions:
            raise ValueError(", ".join(told))
        return self

    def of(self, name: str, path: Path, identity: DatasetIdentity) -> Workload:
        read = read_conversations if self.messages else read_trace
        found = read(path, self.format, self.trace_format, Meaning(self.block_tokens, self.time_unit))
        if not self.sessions:
            told = replace(identity, preprocessing=(*identity.preprocessing, *found.steps))
            return TraceWorkload(
                name, found.entries, told, block_tokens=found.block_tokens, timed=found.is_timed
            )
        made = sessions_of_trace(found, str(path))
        told = replace(identity, preprocessing=(*identity.preprocessing, *made.steps))
        # What is sent is no other for another seed, so which of it comes first has to be.
        shuffled = self.messages and not made.timed
        workload = TraceSessionWorkload(
            name, made.sessions, told, found.block_tokens, timed=made.timed, shuffled=shuffled
        )
        return workload if self.answers is None else with_answers(workload, self.answers)


_KINDS: Mapping[str, type[_Workload]] = {
    "synthetic": _Synthetic,
    "conversation": Conversations,
    "code-completion": _Code,
    "dataset": _Prompts,
    "trace": _Trace,
    "inference-perf": _OfPerf,
}


def read_workload_file(path: Path) -> dict[str, Workload]:
    """The workloads of the file by name. Paths in it are absolute or relative to where it lies.

    Raises one SuiteError with every mistake of every table; a data set that cannot be read is one of them.
    """
    where = f"workload file {path}"
    try:
        content = parse_toml(read_bytes(path, SMALL_BYTES))
    except OSError as error:
        raise SuiteError(f"cannot be read: {error.strerror}", where=where, remedy="check the path") from error
    except ValueError as error:  # broken TOML, or no UTF-8
        raise SuiteError(f"broken TOML: {error}", where=where) from error
    tables = content.pop("workloads", {})
    mistakes = [f"{key}: unknown key" for key in content]
    if not isinstance(tables, Mapping):
        mistakes, tables = [*mistakes, f"workloads is {shown(tables)}: give tables [workloads.NAME]"], {}
    made: dict[str, Workload] = {}
    for name, table in tables.items():
        kind = table.get("kind", "synthetic") if isinstance(table, Mapping) else "synthetic"
        try:
            if not isinstance(kind, str) or kind not in _KINDS:
                raise SuiteError(f"kind is {shown(kind)}: give one of {', '.join(_KINDS)}")
            made[name] = _KINDS[kind].model_validate(table).told(name, path.parent)
        except ValidationError as error:
            mistakes += [_explain(found, f"workloads.{name}", kind) for found in error.errors()]
        except SuiteError as error:
            mistakes.append(f"workloads.{name}: {error}")
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where=where)
    return made


def _explain(found: Any, where: str, kind: str) -> str:
    place = ".".join((where, *(str(part) for part in found["loc"] if part not in ("Law", "constrained-int"))))
    if found["type"] == "missing":
        return f"{where}: {place.removeprefix(f'{where}.')} is missing"
    if found["type"] == "extra_forbidden":
        elsewhere = any(found["loc"] == (key,) for each in _KINDS.values() for key in each.model_fields)
        return (
            f"{where}: {found['loc'][0]} has no meaning for kind {kind!r}"
            if elsewhere
            else f"{place}: unknown key"
        )
    if found["type"] == "value_error":
        return f"{where}: {found['ctx']['error']}"
    return f"{place} is {shown(found['input'])}: {found['msg'].lower()}"


def catalogue_workload(name: str, entry: CatalogueEntry) -> Workload:
    """Single requests with the lengths of an entry of inference-perf's catalogue."""
    base = make_workload(name, input_tokens=entry.input_tokens, output_tokens=entry.output_tokens)
    return make_workload(base, prefix_tokens=entry.system_tokens) if entry.system_tokens else base
