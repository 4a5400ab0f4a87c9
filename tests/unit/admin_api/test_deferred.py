"""Classes whose validators are built with their first value: several threads may have it at once."""

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from admin_api.schema import Schema
from admin_api.sources.bodies import Body

ROUNDS = 100
THREADS = 6


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


def first_uses(base: type[Body] | type[Schema]) -> list[Callable[[], object]]:
    """Ways to need a class that nobody has used, and one inside it."""

    class Inner(base):  # type: ignore[misc, valid-type]
        number: int

    class Outer(base):  # type: ignore[misc, valid-type]
        one: Inner
        more: tuple[Inner, ...] = ()

    return [
        lambda: Outer(one={"number": 1}),
        lambda: Outer.model_validate_json('{"one": {"number": 1}}'),
        lambda: Outer(one=Inner(number=1)).model_dump_json(),
    ]


@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("base", [Schema, Body])
def test_first_values_in_several_threads(base: type[Body] | type[Schema]) -> None:
    faults: list[Exception] = []
    for _ in range(ROUNDS):
        start, uses = threading.Barrier(THREADS), first_uses(base)

        def use(need: Callable[[], object], start: threading.Barrier = start) -> None:
            start.wait()
            try:
                need()
            except Exception as fault:  # noqa: BLE001  # whatever it is, the test is about it
                faults.append(fault)

        threads = [threading.Thread(target=use, args=(uses[n % len(uses)],)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults
