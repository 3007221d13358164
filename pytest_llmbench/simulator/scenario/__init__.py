"""Which engine, with which quirks and faults: presets, variants and their text."""
