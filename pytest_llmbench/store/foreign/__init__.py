"""Result files of other load generators, a module each: which of their figures correspond to ours, and how
they differ."""
