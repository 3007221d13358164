"""A suite to run with the plugin and its extras."""

from plugin_suite import suite  # noqa: F401 - a fixture
