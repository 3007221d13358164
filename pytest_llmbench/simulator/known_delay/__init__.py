"""A server whose delays are known beforehand: what stamps are checked against."""
