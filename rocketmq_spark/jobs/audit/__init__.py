"""Proves from their files that all replicas of a group hold the same bytes."""
