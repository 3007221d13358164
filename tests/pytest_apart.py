"""pytest in a process of its own, for sessions that in this one would not be what is tested."""

from __future__ import annotations

WITHOUT_PICTURES = """
import pytest_llmbench.reports.plots

pytest_llmbench.reports.plots.render = lambda plot, plot_id, salt="": "<svg></svg>"
"""
"""For the conftest of such a session whose subject is not the report: to load matplotlib and to draw takes a
third of it. Sessions in this process: the fixture ``without_pictures``."""

_OTHERS = ("hypothesispytest", "html", "metadata", "timeout")
"""Plugins that those sessions do not need, and which would take time to load."""
WITHOUT_OTHERS = [word for name in _OTHERS for word in ("-p", f"no:{name}")]
