"""The load generator of `bench` and of the measurements."""
