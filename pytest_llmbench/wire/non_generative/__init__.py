"""Dialects that answer with vectors or scores: one JSON document for a reply, no stream, no token."""
