"""The figures of a session for a collector of OpenTelemetry, by its library."""

from __future__ import annotations

from pytest_llmbench.registry import Extra

EXTRA = Extra(receivers={"otlp": "pytest_llmbench.extras.otlp.sending:receiver"})
