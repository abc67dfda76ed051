"""Values that every layer shares: no processes, no sockets, no clocks."""
