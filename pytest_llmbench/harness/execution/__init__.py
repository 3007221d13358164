"""Executes the loads of a test, shares them between tests, and writes them down."""
