"""Limits and comparisons decided on whole confidence intervals; pure."""
