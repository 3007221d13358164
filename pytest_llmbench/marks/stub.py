"""The builders for editors and type checkers, with their keywords: the text of ``builders.pyi``.

``python -m pytest_llmbench.marks.stub > pytest_llmbench/marks/builders.pyi``
"""

from __future__ import annotations

import inspect
import textwrap

from pytest_llmbench.marks import LLMBench, llmbench
from pytest_llmbench.marks.builder import Builder

_HEAD = '''\
"""Made by ``python -m pytest_llmbench.marks.stub`` of the parameters of the tests: change those."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest

from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.classes import RequestClass

class LLMBench:
'''


def stub() -> str:
    """The text of ``builders.pyi``."""
    names = [name for name in dir(llmbench) if not name.startswith("_")]
    told = _docstring(inspect.getdoc(LLMBench) or "", 4)
    markers = [_marker(name, getattr(llmbench, name)) for name in names]
    return _HEAD + "\n".join([told, *markers]) + "\nllmbench: LLMBench\n"


def _marker(name: str, builder: Builder) -> str:
    keywords = "".join(f"        {line},\n" for line in builder.declared)
    head = f"    @staticmethod\n    def {name}(\n{keywords}    ) -> pytest.MarkDecorator:\n"
    return head + _docstring(builder.documentation, 8)


def _docstring(text: str, indent: int) -> str:
    last = "\n" if "\n" in text else ""
    whole = textwrap.indent(f'"""{text}{last}', " " * indent)
    return whole + (" " * indent if last else "") + '"""\n'


if __name__ == "__main__":
    print(stub(), end="")
