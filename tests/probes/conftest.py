"""Servers with canned answers."""

from canned_http import engine, no_proxies, serve  # noqa: F401 - fixtures
