"""The model of an engine: batching, caches, schedulers, preemption, reasoning, guardrails."""
