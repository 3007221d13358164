"""Where baselines are kept that are not in a folder: a directory in a branch of Git."""

from __future__ import annotations

from pytest_llmbench.registry import Extra

EXTRA = Extra(stores={"git": "pytest_llmbench.extras.stores.git_branch:store"})
