"""When to send: arrival schedules as pure values, drawn once from a seed before the run."""
