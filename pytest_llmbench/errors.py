"""The exceptions of this package.

    LLMBenchError
    ├── SuiteError       the author's mistake: a marker, an option, a SUT file, a report directory
    ├── SUTError         the system under test cannot be used at all (unreachable, refuses, does not stream)
    │   └── NotReadyError    the same, and may pass by itself (a refused connection, 503 while it loads)
    ├── RequestFailedError   a request that a test sent by hand (``llm_client``) did not end well
    ├── GeneratorError   our load generator cannot go on
    └── StoreError       a file of ours cannot be written or read

A request that fails while load is running is **data** (an :class:`~pytest_llmbench.model.record.Outcome`),
never an exception. An exception is for something that makes the measurement impossible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_llmbench.redaction import outward

_LONGEST_SHOWN = 200


def shown(value: object) -> str:
    """A value that an author gave, for a message: its ``repr``, shortened, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - theirs, or a number with more digits than Python writes
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}… ({len(text):,} characters)"


def as_python(value: Any) -> Any:
    """A number or an array of NumPy as Python's own, in lists, tuples and dicts too; else the value."""
    if type(value) in (list, tuple):
        return type(value)(map(as_python, value))
    if type(value) is dict:
        return {as_python(key): as_python(each) for key, each in value.items()}
    plain = getattr(value, "tolist", None)
    return plain() if callable(plain) else value


class LLMBenchError(Exception):
    """Base of all exceptions of this package. The message says what is wrong, where, and what to do."""

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        # Servers repeat what they were sent, and users name URLs with keys in them.
        self.what = outward(what)
        self.where = None if where is None else outward(where)
        self.remedy = None if remedy is None else outward(remedy)
        super().__init__(self.render())

    def render(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.remedy:
            lines.append(f"  → {self.remedy}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.remedy))


def _rebuild(kind: type[LLMBenchError], what: str, where: str | None, remedy: str | None) -> LLMBenchError:
    return kind(what, where=where, remedy=remedy)


class SuiteError(LLMBenchError):
    """The suite or its settings are wrong. Raised at collection, before any traffic."""

    @classmethod
    def from_mistakes(
        cls, mistakes: Iterable[str], *, where: str | None = None, remedy: str | None = None
    ) -> SuiteError:
        """One error that lists every mistake, so that the author mends them in one go."""
        found = list(mistakes)
        if len(found) == 1:
            return cls(found[0], where=where, remedy=remedy)
        listed = "\n".join(f"  - {mistake}" for mistake in found)
        return cls(f"{len(found)} mistakes\n{listed}", where=where, remedy=remedy)


class LimitError(SuiteError, TypeError):
    """A limit in code that is not valid: it lacks its unit, or was used as a truth value."""


class UnknownMarkerError(SuiteError, AttributeError):
    """``llmbench`` has no marker of that name."""


class SUTError(LLMBenchError):
    """The system under test cannot be measured. The message names the URL, the cause and the remedy."""


class NotReadyError(SUTError):
    """The system under test cannot be measured yet: nobody listens, or it is still loading."""


class RequestFailedError(LLMBenchError):
    """A request of ``llm_client`` failed."""

    reply: Any = None
    """The :class:`~pytest_llmbench.Reply` with what was received."""


class GeneratorError(LLMBenchError):
    """The load generator cannot continue. The cause is on its side, not in the SUT."""


class StoreError(LLMBenchError):
    """A report, record or baseline file cannot be written or read."""
