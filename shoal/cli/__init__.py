"""Words on the command line become a configuration; nothing else happens here."""
