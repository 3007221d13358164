"""The measured path: sends planned load, stamps every read on arrival, and testifies about itself."""
