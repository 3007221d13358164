"""Traces of served requests: the formats that can be read, and what they share."""
