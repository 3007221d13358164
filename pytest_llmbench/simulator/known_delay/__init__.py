"""A server whose delays are known beforehand, against which the generator's timestamps are checked."""
