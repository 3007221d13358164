"""Workloads from a data set: prompts as text, and where they are from (section 4.3.3).

Nothing is read here. Whoever has the file parses it and hands over values; no data set is bundled.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.messages import Piece, media_json, modalities_of
from pytest_llmbench.model.reply_checks import ExpectedAnswer
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.workloads.bulk_random import BulkRandom
from pytest_llmbench.workloads.stream import StreamedWorkload
from pytest_llmbench.workloads.synthetic import (
    NO_SHARING,
    NO_SYSTEM_PROMPT,
    name_mistakes,
    temperature_mistakes,
)

NOT_STORED: Final = {"stored": False}
"""Metadata of fields with users' texts, which no report stores."""


@dataclass(frozen=True, slots=True)
class DatasetIdentity:
    """The identity of a data set, as the draft requires: name, version, subset, processing."""

    name: str
    version: str
    subset_method: str
    """How the subset was chosen; ``all`` for the whole."""
    preprocessing: tuple[str, ...] = ()
    """Every processing step, in order; empty: none."""
    subset: str = ""
    """Name of the subset; empty if it has none."""
    file_sha256: str = ""
    """Digest of the file that was read; empty if it is not known."""

    def mistakes(self) -> list[str]:
        """Required statements that are missing, in words."""
        needed = {"name": self.name, "version": self.version, "subset_method": self.subset_method}
        return [f"the data set has no {key}" for key, value in needed.items() if not value]

    def specification(self) -> dict[str, Any]:
        """The facts under ``workload.dataset``."""
        return {
            "name": self.name,
            "version": self.version,
            "subset": self.subset,
            "subset_method": self.subset_method,
            "preprocessing": list(self.preprocessing),
            "file_sha256": self.file_sha256,
        }


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a data set, with the output limit it is sent with."""

    text: str
    max_tokens: int
    input_tokens: int | None = None
    """Length in tokens of cl100k_base; None: it is counted."""
    expected: ExpectedAnswer | None = None
    """The answer that the reply is scored by; None: it is not scored."""
    media: tuple[Piece, ...] = ()
    """Images, sounds and videos beside the text."""


@dataclass(frozen=True, slots=True)
class DatasetWorkload(StreamedWorkload):
    """Prompts of a data set such as MATH-500 or HumanEval, as a custom workload.

    Draw order: the list of indices is shuffled once (``shuffle``), unless ``shuffled`` is False; request i is
    prompt i of that order, beginning again after the last. Two such workloads are equal when their settings
    and the digest of their prompts are.
    """

    name: str
    prompts: tuple[Prompt, ...] = field(compare=False, repr=False, metadata=NOT_STORED)
    dataset: DatasetIdentity
    domain: str = "general"
    language: str = "English"
    shuffled: bool = True
    temperature: float = 0.0
    digest: str = field(init=False, repr=False)
    """SHA-256 of the prompts, their output limits and expected answers."""

    def __post_init__(self) -> None:
        mistakes = self.dataset.mistakes() + temperature_mistakes(self.temperature)
        mistakes += name_mistakes(self.name) + text_mistakes(prompt.text for prompt in self.prompts)
        limits = [prompt.max_tokens for prompt in self.prompts if prompt.max_tokens < 1]
        if limits:
            mistakes.append(f"{len(limits)} prompts have an output limit below 1, the first {limits[0]}")
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)
        rows = (_row(prompt) for prompt in self.prompts)
        object.__setattr__(self, "digest", texts_digest(rows))

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        order = list(range(len(self.prompts)))
        if self.shuffled:
            BulkRandom(seed).shuffle(order)
        index, labelled = 0, bool(self._modalities)
        while True:
            prompt = self.prompts[order[index % len(order)]]
            yield PlannedRequest(
                index=index,
                max_tokens=prompt.max_tokens,
                input_tokens=_tokens(prompt),
                text=prompt.text,
                temperature=self.temperature,
                expected=prompt.expected,
                media=prompt.media,
                class_label=modalities_of(prompt.media) if labelled else "",
            )
            index += 1

    @property
    def _modalities(self) -> dict[str, Any]:
        """Modality → how many pieces its prompts have."""
        return dict(Counter(piece.modality for prompt in self.prompts for piece in prompt.media))

    def specification(self) -> Mapping[str, Any]:
        lengths, pieces = _lengths(self), self._modalities
        return {
            "input_length": dict(lengths["input"]),
            "output_length": lengths["output"] | {"control": "max_tokens"},
            "content": {
                "domain": self.domain,
                "language": self.language,
                "system_prompt": dict(NO_SYSTEM_PROMPT),
            },
            "prefix_sharing": {**NO_SHARING, **lengths["sharing"]},
            "temperature": self.temperature,
            "stop": [],
            "dataset": self.dataset.specification() | {"content_sha256": self.digest},
            "generation": {
                "generator": "Python random.Random(seed)",
                "order": ["shuffled indices"] if self.shuffled else ["file order"],
            },
            **({"media": {name: {"files": count} for name, count in pieces.items()}} if pieces else {}),
        }


def text_mistakes(texts: Iterable[str]) -> list[str]:
    """Mistakes in a list of prompts, in words."""
    listed = list(texts)
    if not listed:
        return ["there are no prompts"]
    empty = sum(not text.strip() for text in listed)
    return [f"{empty} prompts are empty: leave them out"] if empty else []


def texts_digest(texts: Iterable[str]) -> str:
    """SHA-256 of texts, each preceded by its length, so that no two lists have the same."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", errors="surrogatepass")
        digest.update(b"%d:" % len(content))
        digest.update(content)
    return digest.hexdigest()


def observed_lengths(tokens: Sequence[int], tokenizer: str = "cl100k_base") -> dict[str, Any]:
    """The lengths found in a data set as section 4.3.1 requires: a histogram of the data set."""
    p50, p95, p99 = (float(value) for value in np.percentile(tokens, (50, 95, 99)))
    params = {
        "source": "the data set, each entry once",
        "entries": len(tokens),
        "min": int(min(tokens)),
        "max": int(max(tokens)),
        "mean": statistics.fmean(tokens),
        "p50": p50,
        "p95": p95,
        "p99": p99,
    }
    return {"type": "empirical", "params": params, "unit": "tokens", "tokenizer": tokenizer}


def _row(prompt: Prompt) -> str:
    expected = prompt.expected
    asked = "" if expected is None else f"{expected.scorer} {expected.answer} "
    beside = json.dumps(media_json(prompt.media)) if prompt.media else ""
    return f"{prompt.max_tokens} {asked}{prompt.text}{beside}"


def _tokens(prompt: Prompt) -> int:
    return reference_tokenizer().count(prompt.text) if prompt.input_tokens is None else prompt.input_tokens


@lru_cache(maxsize=8)
def _lengths(workload: DatasetWorkload) -> dict[str, dict[str, Any]]:
    # Counting a whole data set takes seconds, and every plan's key asks for the specification.
    return {
        "input": observed_lengths([_tokens(prompt) for prompt in workload.prompts]),
        "output": observed_lengths([prompt.max_tokens for prompt in workload.prompts]),
        "sharing": _observed_sharing([prompt.text for prompt in workload.prompts]),
    }


BEGINNING_CHARS = 64
"""Characters of a beginning that two prompts have in common by more than chance: some 16 tokens, the block in
which engines cache."""


def _observed_sharing(texts: Sequence[str]) -> dict[str, Any]:
    """How many prompts of a data set differ, and the share of its entries that begin like another one."""
    beginnings = Counter(text[:BEGINNING_CHARS] for text in texts)
    alike = sum(times for times in beginnings.values() if times > 1)
    return {"distinct_prompts": len(set(texts)), "alike_fraction": alike / len(texts)}
