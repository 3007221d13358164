"""Workloads made of a data set's file: who it is, what was done to it, and the class that takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import Workload
from pytest_llmbench.store.code_functions import HOW, function_prompts
from pytest_llmbench.store.datasets import (
    code_texts,
    conversations,
    exercises,
    file_sha256,
    read_rows,
    trace_entries,
)
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.workloads.code_completion import (
    LANGUAGES,
    THE_STACK,
    CodeCompletionWorkload,
    CodeFunction,
    contexts_from,
)
from pytest_llmbench.workloads.conversation import SHAREGPT, ConversationWorkload
from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload, Prompt
from pytest_llmbench.workloads.trace import TraceWorkload

Rows = Iterable[Mapping[str, Any]]
_Maker = Callable[[str, Mapping[str, Any], Path, Rows, DatasetIdentity], Workload]


def dataset_workload(name: str, table: Mapping[str, Any], folder: Path) -> Workload:
    """The workload of a ``[workloads.NAME]`` table with a ``path``. Raises SuiteError for what cannot be.

    The name ``conversation`` and ``code-completion`` can only be had with the data set that the draft names.
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
    found = exercises(rows, path, str(table.get("prompt_field", "")), str(table.get("answer_field", "")))
    limit = table.get("max_tokens")
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
    asked = {key: table[key] for key in ("domain", "language", "shuffled") if key in table}
    return DatasetWorkload(name, prompts, identity, **asked)


def _trace(
    name: str,
    table: Mapping[str, Any],  # noqa: ARG001 - one signature for all makers
    path: Path,
    rows: Rows,
    identity: DatasetIdentity,
) -> Workload:
    return TraceWorkload(name, tuple(trace_entries(rows, path)), identity)


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
    "trace": ("lengths and arrival times only", "requests without input or output tokens left out"),
}

__all__ = ["dataset_workload"]
