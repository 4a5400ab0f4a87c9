"""What a broker tells of its process and machine, against what the system says itself."""

import os
import resource

import pytest

from broker.monitoring.runtime_info import available_bytes, process_figures


def test_figures_are_those_of_this_process() -> None:
    figures = process_figures(lambda: 1_700_000_000_000)
    assert figures["clockMs"] == "1700000000000"
    assert figures["openFilesMax"] == str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    before = int(figures["openFiles"])
    reading, writing = os.pipe()
    try:
        assert int(process_figures(lambda: 0)["openFiles"]) == before + 2
    finally:
        os.close(reading)
        os.close(writing)
    total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < int(figures["residentBytes"]) < total_bytes
    assert 0 < int(figures["memoryAvailableBytes"]) <= total_bytes


def test_memory_that_is_not_told_is_no_number() -> None:
    assert available_bytes("MemTotal: 9 kB\nMemAvailable:   1024 kB\n") == 1024 * 1024
    with pytest.raises(ValueError, match="invalid literal"):
        available_bytes("MemTotal: 9 kB\n")
