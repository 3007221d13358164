"""Questions from a file: JSON, JSON Lines, CSV or Parquet, with a prompt and its answer in each row."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.store.datasets import MAX_ANSWER_TOKENS, file_sha256, read_rows, scored_prompts
from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload


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
