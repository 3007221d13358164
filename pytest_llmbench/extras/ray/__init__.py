"""Workers on the machines of a Ray cluster: the same worker processes, reached through Ray actors."""

from __future__ import annotations

from pytest_llmbench.registry import Extra

EXTRA = Extra(executors={"ray": "pytest_llmbench.extras.ray.pool:RayLoadGenerator"})
