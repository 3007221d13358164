"""The metrics: each is defined in one place, with its formula, unit and exclusions."""
