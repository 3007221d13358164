"""Tokenizers: text to token counts and ids, with no network."""
