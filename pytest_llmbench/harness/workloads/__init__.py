"""Workloads from files, data sets and names."""
