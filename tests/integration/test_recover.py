"""A majority of a group is gone for good: `ledgermq recover` on what one node has, with real processes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.local.plan import load_plan
from tests.integration.client_runs import ROOT
from tests.integration.cluster import COMMAND, Cluster
from tests.integration.messages import read_all, send_messages
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
