"""Benchmarks: each writes a table and JSON with the environment it ran in. See the head of each file for its command."""
