"""Checks of machine, network and hosts before a run."""
