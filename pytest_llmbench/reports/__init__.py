"""Renderers: from the plain dict of a report to text. They use no files and no clocks, and do not know who
writes the text."""
