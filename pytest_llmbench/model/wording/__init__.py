"""The one table of what findings and notes say, by id; ``model/sentences.py`` fills it."""
