"""Clocks, and waking up at an instant."""
