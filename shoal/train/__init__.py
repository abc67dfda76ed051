"""The program, the loop, callbacks, fit()."""
