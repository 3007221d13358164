"""The type of what renderers take: a part of the plain dict of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Entry = Mapping[str, Any]
