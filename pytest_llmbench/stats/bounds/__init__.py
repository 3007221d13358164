"""Ends of intervals where those of the sampling error are open."""
