"""Wall-clock instants as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso_utc(wall_ns: int) -> str:
    """Nanoseconds since the Unix epoch → ISO 8601 in UTC with milliseconds, ``2026-01-20T09:30:00.125Z``.

    Rounds down, in integers: a float of seconds has no room for nanoseconds.
    """
    instant = _EPOCH + timedelta(microseconds=wall_ns // 1_000_000 * 1000)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
