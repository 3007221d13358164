"""A scripted server, and a load generator for it."""

from load_fixtures import ask, generator_for, loop_factory, plan, serve  # noqa: F401 - fixtures
