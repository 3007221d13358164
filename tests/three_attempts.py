"""Tests of accuracy, which ask whether we *can* measure rightly: whatever else the host does only adds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import ParamSpec

Given = ParamSpec("Given")
TIMES = 3


def three_attempts(test: Callable[Given, None]) -> Callable[Given, None]:
    """The test, measured again while its bounds do not hold, three times in all. A wrong instrument is wrong
    in each of them; a host that is busy with others seldom is so in all."""

    @wraps(test)
    def measured(*args: Given.args, **kwargs: Given.kwargs) -> None:
        for _ in range(TIMES - 1):
            with suppress(AssertionError):
                return test(*args, **kwargs)
        return test(*args, **kwargs)

    return measured
