"""The ten tests, one file each, as procedures without I/O; pure."""
