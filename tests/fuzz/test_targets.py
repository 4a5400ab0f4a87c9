"""Every decoder of bytes from outside: a value or its module's typed error, within bounded memory."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import LENGTHS, damaged
from tests.fuzz.target import load_targets
from tests.fuzz.targets import requests
from tests.support.long_runs import examples

TARGETS = load_targets()
EXAMPLES_MAX = examples(90)
BYTES_PER_BYTE = 200
"""How much memory one byte of input may take on its way through a decoder: JSON's smallest values are
objects of 50 to 100 bytes in memory, and a check holds what it read twice."""
FIXED_BYTES = 600_000
"""And what a check needs whatever its input: the tables of a broker's router, caches that warm up."""
PLACES_MAX = 400

every_target = pytest.mark.parametrize("name", sorted(TARGETS))


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Nothing is logged of so much that is wrong, and the loops of the requests' targets are ended."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    requests.close()


@every_target
def test_samples_are_read(name: str) -> None:
    for sample in TARGETS[name].samples:
        TARGETS[name].check(sample)


@every_target
def test_any_bytes_are_read_or_refused(name: str) -> None:
    target = TARGETS[name]

    @settings(
        max_examples=EXAMPLES_MAX,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(data=damaged(target.samples))
    def read(data: bytes) -> None:
        target.check(data)

    read()


@every_target
def test_a_lying_length_takes_no_memory(name: str) -> None:
    """At every place of a sample, four bytes that say how much would follow."""
    target = TARGETS[name]
    sample = min(target.samples, key=len)
    target.check(sample)
    step = max(1, len(sample) // PLACES_MAX)
    bound = FIXED_BYTES + BYTES_PER_BYTE * len(sample)
    tracemalloc.start()
    try:
        for at in range(0, len(sample), step):
            for length in LENGTHS[-5:]:
                target.check(sample[:at] + length.to_bytes(4, "big") + sample[at + 4 :])
            gc.collect(1)  # cycles of refusals are not what a length made us take
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < bound, f"{peak} bytes for {len(sample)}"


@settings(max_examples=examples(60), deadline=None)
@given(data=damaged([b'{"code":310}']), name=st.sampled_from(sorted(TARGETS)))
def test_what_is_meant_for_another_decoder_is_refused_too(data: bytes, name: str) -> None:
    TARGETS[name].check(data)
