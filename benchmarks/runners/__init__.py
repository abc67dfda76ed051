"""One file for each peer: the training loop its users would write, with everything optional switched off."""
