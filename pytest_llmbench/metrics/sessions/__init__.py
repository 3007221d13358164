"""What is measured of sessions: whole jobs, and their turns by number."""
