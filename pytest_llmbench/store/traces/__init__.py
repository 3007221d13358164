"""Traces of served requests: the formats that are read, and what is common to them."""
