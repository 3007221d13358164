"""Looking at the system under test and at this host before a run. None of it is on the measured path."""
