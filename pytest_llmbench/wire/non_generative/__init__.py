"""Dialects that answer with vectors, scores or log-probabilities: one JSON document, no stream, no token."""
