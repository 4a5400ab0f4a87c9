"""A small producer and a small consumer, for `produce` and `consume`."""
