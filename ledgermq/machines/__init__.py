"""Clusters over several machines: what is copied to each of them, and what runs there."""
