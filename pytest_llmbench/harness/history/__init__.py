"""The saved sessions: listed, compared, followed over time."""
