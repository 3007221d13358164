"""A report in the formats of CI systems: plain files, made without tokens and without a network."""
