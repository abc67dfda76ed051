"""Ways of distributing a program over workers."""
