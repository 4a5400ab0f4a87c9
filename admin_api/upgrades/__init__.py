"""Upgrades from one release to the next: whether one can begin, in which order, and its last step."""
