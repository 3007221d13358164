"""Replay: the engine in virtual time, as a load generator that needs no server."""
