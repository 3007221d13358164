"""Statistics of a load that is looked at while it runs: looks, their boundaries, their verdicts."""
