"""The vocabulary: every metric is defined in one place, with its formula, unit and exclusions."""
