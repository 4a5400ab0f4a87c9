"""One request goes through few files and few calls, on a node that uses its compiled modules. The bounds
are what was reached, so that a longer path is noticed; `python -m tests.walks` prints the paths.
"""

from pathlib import Path

import pytest

import native
from tests.walks.walk import running_node

BOUNDS = {"produce": (34, 210), "pull": (19, 90), "create_topic": (41, 275), "post_topic": (64, 690)}
"""At most so many files of the product, and so many calls of its Python functions."""


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.skipif(not native.compiled_modules(), reason="counts the path of compiled nodes")
async def test_a_request_goes_through_few_files(tmp_path: Path, name: str) -> None:
    async with running_node(tmp_path, is_registered=name == "post_topic") as node:
        walk = await getattr(node, name)()
    files, calls = BOUNDS[name]
    assert len(walk.files) <= files, walk
    assert len(walk.calls) <= calls, walk
