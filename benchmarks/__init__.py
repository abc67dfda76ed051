"""Benchmarks: each writes a table and JSON with the environment it ran in; its head gives the command."""
