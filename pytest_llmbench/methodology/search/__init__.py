"""Searches for a rate, a capacity, a saturation point."""
