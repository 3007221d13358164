"""What the load generator can be trusted with on this host."""
