"""Topics kept as Parquet: every message once, provably."""
