"""The value types that every layer shares: frozen, with no behaviour beyond their own consistency."""
