"""The compliance audit: every clause of the draft against the evidence of a run (section 2)."""
