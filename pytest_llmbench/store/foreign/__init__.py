"""Result files of other load generators, a module each: which figures of theirs are figures of ours, and
how they differ."""
