"""The ten tests of section 5 of the draft, a module each, and goodput, reasoning and sessions beyond it."""
