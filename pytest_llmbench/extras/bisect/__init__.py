"""``pytest-llmbench bisect``: the commit that made a figure worse, found by noisy measurements."""

from __future__ import annotations

from pytest_llmbench.registry import Extra

EXTRA = Extra(commands={"bisect": "pytest_llmbench.extras.bisect.command:main"})
