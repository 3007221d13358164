"""The composition root: procedures meet the generator, the engine, the probes and the store."""
