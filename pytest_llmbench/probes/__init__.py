"""Probes of the system under test and of this host before a run. None of them is on the measured path."""
