"""The choice of an engine, with its quirks and faults: presets, variants and their text."""
