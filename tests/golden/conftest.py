"""`pytest tests/golden --rewrite` writes what the scripts print now over what they printed before."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", default=False, help="write the golden files anew; review the diff"
    )


@pytest.fixture
def is_rewriting(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))
