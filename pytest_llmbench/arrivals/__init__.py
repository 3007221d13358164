"""Arrival schedules: pure values that say when to send, drawn once from a seed before the run."""
