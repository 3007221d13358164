"""The system under test: its file, its variants, servers that are launched, access to it."""
