"""The ten tests of section 5 of the draft, a module each, and those beyond it: goodput, reasoning, sessions,
and requests that generate nothing."""
