"""The embedded engine: a simulated LLM server whose true behaviour is known. One pure model of an engine,
served in real time or replayed in virtual time."""
