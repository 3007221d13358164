"""Renderers: the plain dict of a report in, text out. No files, no clocks, no knowledge of who writes it."""
