"""The files of this package: the one JSON shape of a report, the record lines, and what keeps secrets out of
both."""
