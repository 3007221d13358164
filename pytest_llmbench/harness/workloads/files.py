"""``--llm-workloads``: a TOML file of workloads that markers may name: length laws, data sets, traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.harness.workloads.exact_lengths import ExactLengths
from pytest_llmbench.harness.workloads.factory import make_workload
from pytest_llmbench.input_files import SMALL_BYTES, parse_toml, read_bytes
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.session import Answers
from pytest_llmbench.store.code_functions import HOW, function_prompts
from pytest_llmbench.store.datasets import (
    MAX_ANSWER_TOKENS,
    code_texts,
    conversations,
    exercises,
    file_sha256,
    read_rows,
    scored_prompts,
)
from pytest_llmbench.store.perf_catalogue import CatalogueEntry, read_catalogue
from pytest_llmbench.store.traces.reading import read_conversations, read_trace
from pytest_llmbench.store.traces.sessions import sessions_of_trace
from pytest_llmbench.store.traces.sources import Meaning, TimeUnit
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.workloads.adapted import cuts_of
from pytest_llmbench.workloads.catalogue import with_answers, with_cuts
from pytest_llmbench.workloads.code_completion import (
    LANGUAGES,
    THE_STACK,
    CodeCompletionWorkload,
    CodeFunction,
    contexts_from,
)
from pytest_llmbench.workloads.conversation import SHAREGPT, ConversationWorkload
from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload, Prompt
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
from pytest_llmbench.workloads.trace import TraceWorkload
from pytest_llmbench.workloads.trace_sessions import TraceSessionWorkload

Rows = Iterable[Mapping[str, Any]]
_Maker = Callable[[str, Mapping[str, Any], Path, Rows, DatasetIdentity], Workload]


def dataset_workload(name: str, table: Mapping[str, Any], folder: Path) -> Workload:
    """The workload of a ``[workloads.NAME]`` table with a ``path``. Raises SuiteError for an impossible one.

    The names ``conversation`` and ``code-completion`` can only be used with the data set that the draft
    names.
    """
    path = folder / Path(str(table["path"])).expanduser()
    kind = str(table["kind"])
    identity = DatasetIdentity(
        name=str(table.get("dataset", _USUAL.get(kind, ""))),
        version=str(table["version"]),
        subset=str(table.get("subset", "")),
        subset_method=str(table["subset_method"]),
        preprocessing=(*table.get("preprocessing", ()), *_DONE_HERE[kind]),
        file_sha256=file_sha256(path),
    )
    return _MAKERS[kind](name, table, path, read_rows(path, table.get("format")), identity)


def _conversation(
    name: str,
    table: Mapping[str, Any],  # noqa: ARG001 - one signature for all makers
    path: Path,
    rows: Rows,
    identity: DatasetIdentity,
) -> Workload:
    return ConversationWorkload(tuple(conversations(rows, path)), identity, name)


def _code(name: str, table: Mapping[str, Any], path: Path, rows: Rows, identity: DatasetIdentity) -> Workload:
    texts = code_texts(rows, path, tuple(table.get("languages", LANGUAGES)))
    functions = tuple(
        CodeFunction(prompt, language)
        for language, text in texts
        for prompt in function_prompts(language, text)
    )
    if not functions:
        raise SuiteError(
            "no function was found in its source texts",
            where=str(path),
            remedy="give files of the data set, or functions whole, one to a row",
        )
    contexts = contexts_from([text for _, text in texts])
    return CodeCompletionWorkload(functions, contexts, identity, name)


def _prompts(
    name: str, table: Mapping[str, Any], path: Path, rows: Rows, identity: DatasetIdentity
) -> Workload:
    fields = str(table.get("prompt_field", "")), str(table.get("answer_field", ""))
    limit = table.get("max_tokens")
    asked = {key: table[key] for key in ("domain", "language", "shuffled") if key in table}
    if "scorer" in table:
        scored = scored_prompts(rows, path, table["scorer"], limit or MAX_ANSWER_TOKENS, *fields)
        return DatasetWorkload(name, scored, identity, **asked)
    found = exercises(rows, path, *fields)
    unlimited = sum(answer is None for _, answer in found)
    if limit is None and unlimited:
        raise SuiteError(
            f"{unlimited} of {len(found)} rows have no answer whose length limits the output",
            where=str(path),
            remedy='say max_tokens = …, or name the field, answer_field = "…"',
        )
    count = reference_tokenizer().count
    prompts = tuple(
        Prompt(prompt, limit if limit is not None else max(1, count(answer or "")))
        for prompt, answer in found
    )
    return DatasetWorkload(name, prompts, identity, **asked)


def _trace(
    name: str,
    table: Mapping[str, Any],
    path: Path,
    rows: Rows,  # noqa: ARG001 - one signature for all makers; traces are read with the place of each row
    identity: DatasetIdentity,
) -> Workload:
    with_messages = bool(table.get("messages"))
    read = read_conversations if with_messages else read_trace
    meaning = Meaning(table.get("block_tokens"), table.get("time_unit"))
    found = read(path, table.get("format"), table.get("trace_format"), meaning)
    if table.get("sessions"):
        made = sessions_of_trace(found, str(path))
        told = replace(identity, preprocessing=(*identity.preprocessing, *made.steps))
        # What is sent is no other for another seed, so which of it comes first has to be.
        shuffled = with_messages and not made.timed
        return TraceSessionWorkload(
            name, made.sessions, told, found.block_tokens, timed=made.timed, shuffled=shuffled
        )
    told = replace(identity, preprocessing=(*identity.preprocessing, *found.steps))
    return TraceWorkload(name, found.entries, told, block_tokens=found.block_tokens, timed=found.is_timed)


_MAKERS: Mapping[str, _Maker] = {
    "conversation": _conversation,
    "code-completion": _code,
    "dataset": _prompts,
    "trace": _trace,
}
_USUAL: Mapping[str, str] = {"conversation": SHAREGPT[0], "code-completion": THE_STACK}
_DONE_HERE: Mapping[str, tuple[str, ...]] = {
    "conversation": (
        "conversations without a human and a following assistant turn left out",
        "first human turn as prompt, length of the first assistant turn as output limit",
    ),
    "code-completion": (HOW, "repository contexts cut from the source texts in file order"),
    "dataset": (),
    "trace": (),  # the reader says it
}


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Positive = Annotated[int, Field(ge=1, le=MOST_TOKENS)]


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
        needed, make = _LAWS[self.kind]
        given = self.model_dump(exclude={"kind"}, exclude_none=True)
        optional = {"weights"} if self.kind == "empirical" else set()
        mistakes = [f"{name} is missing" for name in needed if name not in given]
        mistakes += [f"{name} has no meaning here" for name in given if name not in {*needed, *optional}]
        if mistakes:
            raise SuiteError(f"length law {self.kind}: {', '.join(mistakes)}")
        return make(given)


def _listed(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _fixed(value: Any) -> LengthLaw:
    if isinstance(value, list):
        raise SuiteError("length law fixed: tokens is a list, give one number")
    return Fixed(value)


_LAWS: Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], LengthLaw]]] = {
    "fixed": (("tokens",), lambda given: _fixed(given["tokens"])),
    "uniform": (("min", "max"), lambda given: Uniform(given["min"], given["max"])),
    "normal": (
        ("mean", "sd", "min", "max"),
        lambda given: Normal(given["mean"], given["sd"], given["min"], given["max"]),
    ),
    "lognormal": (
        ("mu", "sigma", "min", "max"),
        lambda given: LogNormal(given["mu"], given["sigma"], given["min"], given["max"]),
    ),
    "choice": (("tokens",), lambda given: Choice(_listed(given["tokens"]))),
    "empirical": (
        ("tokens",),
        lambda given: Empirical(
            _listed(given["tokens"]), tuple(given["weights"]) if "weights" in given else None
        ),
    ),
}


class WorkloadTable(_Table):
    """A ``[workloads.NAME]`` table. ``kind`` decides which of the keys it takes."""

    kind: Literal["synthetic", "conversation", "code-completion", "dataset", "trace", "inference-perf"] = (
        "synthetic"
    )
    # synthetic
    input_tokens: Positive | Law | None = None
    output_tokens: Positive | Law | None = None
    exact: bool = False
    # data sets
    path: Text | None = None
    format: Literal["json", "jsonl", "csv", "parquet"] | None = None
    dataset: Text | None = None
    version: Text | None = None
    subset: Text | None = None
    subset_method: Text | None = None
    preprocessing: list[Text] = []
    # kind = "dataset"
    prompt_field: Text | None = None
    answer_field: Text | None = None
    scorer: Text | None = None
    max_tokens: Positive | None = None
    domain: Text | None = None
    language: Text | None = None
    shuffled: bool | None = None
    # kind = "trace"
    trace_format: str | None = None
    block_tokens: Positive | None = None
    time_unit: TimeUnit | None = None
    sessions: bool = False
    messages: bool = False
    answers: Answers | None = None
    # kind = "code-completion"
    languages: list[Text] | None = None
    # every kind
    cut_share: float | None = None
    cut_after_s: float | list[float] | None = None


_OF_EVERY_DATASET = ("path", "format", "dataset", "version", "subset", "subset_method", "preprocessing")
_OF_EVERY_KIND = ("cut_share", "cut_after_s")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "synthetic": ("input_tokens", "output_tokens", "exact"),
    "conversation": _OF_EVERY_DATASET,
    "code-completion": (*_OF_EVERY_DATASET, "languages"),
    "dataset": (
        *_OF_EVERY_DATASET,
        "prompt_field",
        "answer_field",
        "scorer",
        "max_tokens",
        "domain",
        "language",
        "shuffled",
    ),
    "trace": (
        *_OF_EVERY_DATASET,
        "trace_format",
        "block_tokens",
        "time_unit",
        "sessions",
        "messages",
        "answers",
    ),
    "inference-perf": ("path",),
}
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "synthetic": ("input_tokens", "output_tokens"),
    "conversation": ("path", "version", "subset_method"),
    "code-completion": ("path", "version", "subset_method"),
    "dataset": ("path", "dataset", "version", "subset_method"),
    "trace": ("path", "dataset", "version", "subset_method"),
    "inference-perf": ("path",),
}


class _File(_Table):
    workloads: dict[str, WorkloadTable] = {}


def read_workload_file(path: Path) -> dict[str, Workload]:
    """The workloads of the file by name. Paths in it are absolute or relative to where it lies.

    Raises one SuiteError with every mistake of every table; a data set that cannot be read is one of them.
    """
    where = f"workload file {path}"
    try:
        content = parse_toml(read_bytes(path, SMALL_BYTES))
        tables = _File.model_validate(content).workloads
    except OSError as error:
        raise SuiteError(f"cannot be read: {error.strerror}", where=where, remedy="check the path") from error
    except ValidationError as error:
        raise SuiteError.from_mistakes([_explain(found) for found in error.errors()], where=where) from error
    except ValueError as error:  # broken TOML, or no UTF-8
        raise SuiteError(f"broken TOML: {error}", where=where) from error
    made: dict[str, Workload] = {}
    mistakes: list[str] = []
    for name, table in tables.items():
        own = _table_mistakes(table)
        if not own:
            try:
                made[name] = _workload(name, table, path.parent)
            except SuiteError as error:
                own = [str(error)]
        mistakes += [f"workloads.{name}: {mistake}" for mistake in own]
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where=where)
    return made


def _explain(found: Any) -> str:
    place = ".".join(str(part) for part in found["loc"] if part not in ("Law", "constrained-int"))
    if found["type"] == "extra_forbidden":
        return f"{place}: unknown key"
    return f"{place} is {shown(found['input'])}: {found['msg'].lower()}"


def _table_mistakes(table: WorkloadTable) -> list[str]:
    given = table.model_fields_set - {"kind"}
    found = [
        f"{key} has no meaning for kind {table.kind!r}"
        for key in sorted(given - {*_KEYS[table.kind], *_OF_EVERY_KIND})
    ]
    if table.messages and not table.sessions:
        found.append("messages are of sessions: give sessions = true as well")
    if table.answers is not None and not table.sessions:
        found.append("answers are of sessions: give sessions = true as well")
    return found + [f"{key} is missing" for key in _NEEDED[table.kind] if key not in given]


def _workload(name: str, table: WorkloadTable, folder: Path) -> Workload:
    made = _of_its_kind(name, table, folder)
    after_s = tuple(table.cut_after_s) if isinstance(table.cut_after_s, list) else table.cut_after_s
    cuts = cuts_of(table.cut_share, after_s)
    made = made if cuts is None else with_cuts(made, cuts)
    return made if table.answers is None else with_answers(made, table.answers)


def _of_its_kind(name: str, table: WorkloadTable, folder: Path) -> Workload:
    if table.kind == "inference-perf":
        return catalogue_workload(name, read_catalogue(folder / Path(str(table.path)).expanduser()))
    if table.kind != "synthetic":
        return dataset_workload(name, table.model_dump(exclude_none=True), folder)
    made = make_workload(name, input_tokens=_law(table.input_tokens), output_tokens=_law(table.output_tokens))
    return ExactLengths(made) if table.exact else made


def catalogue_workload(name: str, entry: CatalogueEntry) -> Workload:
    """Single requests with the lengths of an entry of inference-perf's catalogue."""
    base = make_workload(name, input_tokens=entry.input_tokens, output_tokens=entry.output_tokens)
    return make_workload(base, prefix_tokens=entry.system_tokens) if entry.system_tokens else base


def _law(given: int | Law | None) -> int | LengthLaw | None:
    return given.law() if isinstance(given, Law) else given
