"""Extras that come with the package: folders that plug in by ``pytest_llmbench.registry``."""
