"""Sessions under test whose subject is not timing, and which send a load all the same: no load of theirs is
void for what this machine did meanwhile."""

from __future__ import annotations

import pytest

from pytest_llmbench.methodology import spoiled
from pytest_llmbench.methodology.measuring import offered, validity

HOWEVER_LATE = """
from pytest_llmbench.methodology import spoiled
from pytest_llmbench.methodology.measuring import offered, validity

spoiled.FLOOR_MS, spoiled.EMPTY_SLOTS, validity.BUFFERED_VOID_SHARE = 1e9, 1.0, 1.0
offered.ACHIEVED_RATE_SHARE, offered.lag_limit_ns, offered.growth_limit_ns = 0.0, *[lambda *_: 1e18] * 2
"""
"""For the conftest of a session in a process of its own."""
_LIMITS = {
    spoiled: ("FLOOR_MS", "EMPTY_SLOTS"),
    validity: ("BUFFERED_VOID_SHARE",),
    offered: ("ACHIEVED_RATE_SHARE", "lag_limit_ns", "growth_limit_ns"),
}


@pytest.fixture
def however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """For sessions in this process."""
    for module, names in _LIMITS.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))  # which puts it back afterwards
    exec(HOWEVER_LATE)
