"""Raw files as sources of samples: small ones in memory, larger ones by pieces where the format has them."""
