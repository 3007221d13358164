"""Loads of a test executed, shared and written down."""
