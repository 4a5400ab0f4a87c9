"""A cluster on this machine: its plan, its processes and their supervisor."""
