"""What was saved of earlier sessions: listed, compared, followed over time."""
