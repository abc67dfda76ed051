"""The soak: random programs, run in random ways, hurt in random histories, and judged by the laws.

    python -m shoal.testing.soak --minutes 30 --seed 7

A *case* is a program, a way to run it and a history, each a frozen value: one line of text repeats it
(`--case '…'`). Cases are drawn from a seed, so that nothing needs to be kept.
"""
