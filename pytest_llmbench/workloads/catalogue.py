"""Workloads by name, and the check that every custom one passes before it is used."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.specification import check_specification
from pytest_llmbench.workloads.synthetic import STANDARD_NAMES, SYNTHETIC_UNIFORM

WORKLOADS: Final[Mapping[str, Workload]] = MappingProxyType({SYNTHETIC_UNIFORM.name: SYNTHETIC_UNIFORM})
"""The workloads that can be asked for by name."""

_MEMBERS = ("name", "standard", "requests", "specification")


def workload(wanted: str | Workload) -> Workload:
    """The workload called ``wanted``, or ``wanted`` itself once it is seen to be complete.

    Raises SuiteError for an unknown name and for a custom workload that is not fully specified
    (METHODOLOGY §4.1).
    """
    return _named(wanted) if isinstance(wanted, str) else _checked(wanted)


def _named(name: str) -> Workload:
    if name in WORKLOADS:
        return WORKLOADS[name]
    available = f"available: {', '.join(WORKLOADS)}"
    if name in STANDARD_NAMES:
        raise SuiteError(
            f"workload {name!r} is a reference workload of the draft that this version does not generate",
            remedy=f"{available}; or hand over a workload object of your own under another name",
        )
    close = difflib.get_close_matches(name.lower().replace("_", "-"), STANDARD_NAMES, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise SuiteError(f"unknown workload {name!r}", remedy=f"{hint}{available}")


def _checked(candidate: Workload) -> Workload:
    if any(candidate is known for known in WORKLOADS.values()):
        return candidate
    where = f"workload {getattr(candidate, 'name', candidate)!r}"
    if inspect.isclass(candidate):
        raise SuiteError("a class, not a workload", where=where, remedy=f"write {candidate.__name__}(…)")
    missing = [f"it has no {member}" for member in _MEMBERS if not hasattr(candidate, member)]
    if missing:
        remedy = "a workload has name, standard, requests(count, seed) and specification()"
        raise SuiteError.from_mistakes(missing, where=where, remedy=remedy)
    mistakes = check_specification(candidate)
    if (candidate.name in STANDARD_NAMES or candidate.standard) and candidate != SYNTHETIC_UNIFORM:
        mistakes.append("it claims to be a reference workload: choose another name and let standard be False")
    if mistakes:
        remedy = "a custom workload has to be fully specified (section 4.3.1 of the draft)"
        raise SuiteError.from_mistakes(mistakes, where=where, remedy=remedy)
    return candidate


__all__ = ["STANDARD_NAMES", "WORKLOADS", "workload"]
