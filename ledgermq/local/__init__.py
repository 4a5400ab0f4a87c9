"""A cluster on this machine: its plan, its processes, their supervisor."""
