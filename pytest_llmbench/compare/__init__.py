"""Good enough? Limits against whole intervals; pure."""
