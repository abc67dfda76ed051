"""How rows are divided into shards: pure functions of values, without files and processes."""
