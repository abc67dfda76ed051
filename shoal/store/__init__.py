"""A key-value store of arrays: dense ones and rows of large tables, spread over servers. NumPy in and out.

The core of it is pure: `Shard` is the state machine of one server, `Board` deals out tasks, placement is a function.
Nothing in this package needs PyTorch.
"""
