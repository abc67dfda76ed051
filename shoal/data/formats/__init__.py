"""Formats of raw files."""
