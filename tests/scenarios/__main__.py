"""`python -m tests.scenarios` prints the page `docs/scenarios.md`."""

import sys

from tests.scenarios.catalogue import render

sys.stdout.write(render())
