"""A run hurt on purpose, next to the same run undisturbed: what happened, and whether the laws held."""
