"""From raw files to a prepared data set: map, shuffle, reduce and partition, in tasks that any engine can run."""
