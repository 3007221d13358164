"""The model of an inference engine: batching, caches, schedulers, preemption, reasoning, guardrails."""
