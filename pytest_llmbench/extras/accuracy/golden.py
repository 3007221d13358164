"""The share of right answers that a trusted system gave, from a file: a report, or a list of shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pytest_llmbench.errors import StoreError, SuiteError, shown
from pytest_llmbench.input_files import parse_json, read_bytes
from pytest_llmbench.metrics.accuracy import ACCURACY_OF_SET
from pytest_llmbench.model.request import Workload
from pytest_llmbench.store.files import read_report
from pytest_llmbench.store.schema import Report, TestEntry

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
    return _listed(content, path, workload)


def _listed(content: Any, path: str, workload: Workload) -> float:
    share = content.get(workload.name) if isinstance(content, dict) else None
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        what = f"states no share from 0 to 1 for {workload.name!r}"
        remedy = f'write {{"{workload.name}": 0.83}}, or name the report.json of a session'
        raise SuiteError(what, where=f"golden {shown(path)}", remedy=remedy)
    return float(share)


def _of_report(report: Report, path: str, workload: Workload) -> float:
    asked = {name: workload.specification().get(name) for name in _IDENTITY}
    entries = [each for each in report.tests if each.test == "accuracy" and _share(each) is not None]
    alike = [each for each in entries if each.workload is not None and _identity(each) == asked]
    shares = {_share(each) for each in alike}
    if len(shares) == 1 and (share := shares.pop()):
        return share
    listed = ", ".join(each.nodeid for each in alike or entries) or "no test with a share"
    what = (
        f"its tests have {len(shares)} shares of right answers to these questions: {listed}"
        if alike
        else f"no accuracy test in it was measured with the questions of {workload.name!r}; it has {listed}"
    )
    raise SuiteError(what, where=f"golden {shown(path)}", remedy=_GIVE)


def _share(entry: TestEntry) -> float | None:
    found = entry.metrics.get(ACCURACY_OF_SET)
    return None if found is None else found.point


def _identity(entry: TestEntry) -> dict[str, Any]:
    assert entry.workload is not None
    return {name: entry.workload.specification.get(name) for name in _IDENTITY}
