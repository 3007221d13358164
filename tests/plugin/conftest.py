"""One embedded engine for all tests of the plugin, and a suite to run against it."""

from plugin_suite import engine, suite  # noqa: F401 - fixtures
