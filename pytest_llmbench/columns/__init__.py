"""Records that outgrow memory: columns in files, filled in blocks and merged by submission."""
