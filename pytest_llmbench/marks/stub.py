"""What editors and type checkers read: markers with their keywords, and results with their metrics.

``python -m pytest_llmbench.marks.stub`` writes ``marks/builders.pyi`` and ``model/named_metrics.pyi``.
"""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

from pytest_llmbench.marks import LLMBench, llmbench
from pytest_llmbench.marks.builder import Builder
from pytest_llmbench.metrics.definitions import METRICS, SPREAD
from pytest_llmbench.metrics.summary import STATISTICS

_HEAD = '''\
"""Made by ``python -m pytest_llmbench.marks.stub`` of the parameters of the tests: change those."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest

from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import Churn
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.mixture import RequestClass

class LLMBench:
'''


_METRICS_HEAD = '''\
"""Made by ``python -m pytest_llmbench.marks.stub`` of the definitions of the metrics: change those."""

from collections.abc import Mapping

from pytest_llmbench.model.estimate import Estimate, ReadEstimate

class MetricView:
    def __init__(self, metrics: Mapping[str, Estimate], prefix: str) -> None: ...
'''


def stubs() -> dict[Path, str]:
    """The two files, and the text of each."""
    package = Path(__file__).parents[1]
    names = [name for name in dir(llmbench) if not name.startswith("_")]
    told = _docstring(inspect.getdoc(LLMBench) or "", 4)
    markers = []
    for name in names:
        builder: Builder = getattr(llmbench, name)
        keywords = "".join(f"        {line},\n" for line in builder.declared)
        head = f"    @staticmethod\n    def {name}(\n{keywords}    ) -> pytest.MarkDecorator:\n"
        markers.append(head + _docstring(builder.documentation, 8))
    statistics = [_figure(name, "ReadEstimate") for name in dict.fromkeys((*STATISTICS, *SPREAD))]
    metrics = [
        _figure(each.name, "MetricView" if each.is_family else "ReadEstimate", each.title)
        for each in sorted(METRICS.values(), key=lambda each: each.name)
    ]
    named = "".join([_METRICS_HEAD, *statistics, "\nclass NamedMetrics:\n", *metrics])
    return {
        package / "marks" / "builders.pyi": (_HEAD + "\n".join([told, *markers]) + "\nllmbench: LLMBench\n"),
        package / "model" / "named_metrics.pyi": named,
    }


def _figure(name: str, kind: str, title: str = "") -> str:
    told = f'\n        """{title}."""' if title else " ..."
    return f"    @property\n    def {name}(self) -> {kind}:{told}\n"


def _docstring(text: str, indent: int) -> str:
    last = "\n" if "\n" in text else ""
    whole = textwrap.indent(f'"""{text}{last}', " " * indent)
    return whole + (" " * indent if last else "") + '"""\n'


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text, "utf-8")
