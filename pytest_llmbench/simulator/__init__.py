"""The embedded engine: a simulated LLM server with known truth. One pure model, served in real time."""
