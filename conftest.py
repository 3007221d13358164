"""For the whole repository: pytester is used by the plugin's own tests."""

pytest_plugins = ["pytester"]
