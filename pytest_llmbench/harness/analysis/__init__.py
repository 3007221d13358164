"""A finished report for notebooks and other tools: read with types, its records as arrays and tables."""
