"""The selftest: how far the load generator can be trusted on this host."""
