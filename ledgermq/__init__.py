"""The command line, and the supervisor of a local cluster."""
