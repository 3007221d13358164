"""`llmbench`: one typed marker builder per test.

    from pytest_llmbench import llmbench

    @llmbench.ttft(p99_ms=500, rate=20)
    def test_first_token_is_quick(): ...

A builder makes an ordinary pytest mark, ``pytest.mark.llmbench(test="ttft", p99_ms=500, rate=20)``, and never
raises: what is wrong with its arguments is said at collection, all mistakes at once and with the test's name.
Only a builder that there is not is an error where it is written.
"""

from __future__ import annotations

from typing import Any

from pytest_llmbench.errors import UnknownMarkerError
from pytest_llmbench.marks.builder import MARK, POSITIONAL
from pytest_llmbench.marks.capacity import CapacityMarks
from pytest_llmbench.marks.comparing import COMPARE, ComparingMarks
from pytest_llmbench.marks.effects import EffectMarks
from pytest_llmbench.marks.goodput import GoodputMarks
from pytest_llmbench.marks.latency import LatencyMarks
from pytest_llmbench.marks.non_generative import NonGenerativeMarks
from pytest_llmbench.marks.reasoning import ReasoningMarks
from pytest_llmbench.marks.regression import NO_REGRESSION, RegressionMarks
from pytest_llmbench.marks.sessions import SessionMarks


class LLMBench(
    LatencyMarks,
    CapacityMarks,
    EffectMarks,
    GoodputMarks,
    ReasoningMarks,
    SessionMarks,
    NonGenerativeMarks,
    RegressionMarks,
    ComparingMarks,
):
    """The namespace of the markers that measure, and of ``no_regression``. Unknown names say which
    there are."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known = [test for test in dir(type(self)) if not test.startswith("_")]
        raise UnknownMarkerError(f"llmbench has no test {name!r}; there are: {', '.join(known)}")


llmbench = LLMBench()

__all__ = ["COMPARE", "MARK", "NO_REGRESSION", "POSITIONAL", "LLMBench", "llmbench"]
