"""Scenarios of the embedded engine: presets, variants, options and faults, and their text form."""
