"""The blocking client of Spark's processes: routes and leaders, offsets, pulls, sends."""
