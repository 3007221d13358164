"""Workloads: seeded request streams, the reference workloads of the draft and custom ones."""
