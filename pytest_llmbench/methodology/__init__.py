"""The ten tests of the draft, one module each, as pure procedures without I/O."""
