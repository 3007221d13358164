"""The engine in virtual time: a load generator that needs no server."""
