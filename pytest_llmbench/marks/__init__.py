"""`llmbench`: one typed marker builder per test.

    from pytest_llmbench import llmbench

    @llmbench.ttft(p99_ms=500, rate=20)
    def test_first_token_is_quick(): ...

A builder makes an ordinary pytest mark, ``pytest.mark.llmbench(test="ttft", p99_ms=500, rate=20)``, and never
raises: what is wrong with its arguments is said at collection, all mistakes at once and with the test's name.
Only a builder that there is not is an error where it is written.

The keywords of a test are declared once, in its parameters (``methodology/parameters.py``).
"""

from __future__ import annotations

from pytest_llmbench.marks.builder import COMPARE, MARK, NO_REGRESSION
from pytest_llmbench.marks.builders import LLMBench, llmbench

__all__ = ["COMPARE", "MARK", "NO_REGRESSION", "LLMBench", "llmbench"]
