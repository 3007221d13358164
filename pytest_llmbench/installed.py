"""The versions of installed distributions."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

_VERSION = re.compile(r"^Version:[ \t]*(\S+)[ \t]*$", re.MULTILINE)
"""The line with the version in the head of a metadata file, which has one such line; the description comes
below."""


@cache
def installed_version(name: str) -> str | None:
    """The version of a distribution; None if it is not installed.

    As :func:`importlib.metadata.version`, which parses the whole of the file, licence texts included: a
    millisecond and more for each of some twenty that a report names.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    head = (found.read_text("METADATA") or "").partition("\n\n")[0]
    match = _VERSION.search(head)
    return found.version if match is None else match[1]
