"""Workers on the machines of a Ray cluster: the same worker processes, reached through Ray actors."""
