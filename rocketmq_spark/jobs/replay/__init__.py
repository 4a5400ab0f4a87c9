"""Sends messages of an archive or a topic again, at a bounded rate."""
