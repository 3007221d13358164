"""Bounds on latencies by what is known of the queue that requests waited in."""
