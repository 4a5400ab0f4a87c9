"""Paths below `/api/v1`."""

from urllib.parse import quote


def path_of(*parts: str) -> str:
    """`topics`, `a/b` -> `/topics/a%2Fb`: names are text, whatever characters they have."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)
