"""The nouns: frozen value types that every layer shares. No behaviour beyond their own consistency."""
