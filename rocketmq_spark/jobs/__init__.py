"""The jobs: archive, replay, audit and report, as functions and as commands."""
