"""Several systems, arms and repetitions: what is compared, in which order, with what."""
