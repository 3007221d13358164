"""Several systems, arms and repetitions: what is compared with what, and in which order."""
