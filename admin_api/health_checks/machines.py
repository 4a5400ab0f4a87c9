"""Health check: disks, clocks, versions and limits of the nodes. Pure."""

from collections.abc import Iterator
from typing import Final

from admin_api.health_checks.facts import Facts, Finding, error, warning, words_of_ms

DISK_WARNING_RATIO: Final = 0.85
DISK_ERROR_RATIO: Final = 0.90
"""As full as that, a node takes no messages, unless diskSpaceWarningLevelRatio says otherwise."""
SKEW_MS_MAX: Final = 1_000
FILES_WARNING_RATIO: Final = 0.8
MEMORY_WARNING_RATIO: Final = 0.05
DISPATCH_BYTES_MAX: Final = 64 * 1024 * 1024


def check_disks(facts: Facts) -> Iterator[Finding]:
    for address, vitals in facts.vitals.items():
        ratio = vitals.runtime.ratio("commitLogDiskRatio")
        if ratio is None or ratio < DISK_WARNING_RATIO:
            continue
        free = vitals.runtime.capacity()[1]
        left = "" if free is None else f", {free / 1024**3:.1f} GiB are free"
        sentence = f"The disk of {address} is {ratio:.0%} full{left}."
        remedy = (
            "Give it more room, or let messages go earlier (fileReservedTime). When it is full, no message "
            "is taken."
        )
        make = error if ratio >= DISK_ERROR_RATIO else warning
        yield make("disk-near-full", address, sentence, remedy)


def check_clocks(facts: Facts) -> Iterator[Finding]:
    """Against the middle clock of all, so that one that is wrong does not make the others so."""
    for address, (ahead_ms, doubt_ms) in facts.clock_ahead_ms().items():
        if abs(ahead_ms) <= SKEW_MS_MAX + doubt_ms:
            continue
        way = "ahead of" if ahead_ms > 0 else "behind"
        yield warning(
            "clock-skew",
            address,
            f"The clock of {address} is {words_of_ms(abs(ahead_ms))} {way} the others.",
            "Let NTP or chrony keep it. Store times, delays, retention and searches by time follow the clock "
            "of the leader.",
        )


def check_versions(facts: Facts) -> Iterator[Finding]:
    for group in facts.view.groups:
        by_version: dict[str, list[str]] = {}
        for node in group.nodes:
            vitals = facts.vitals.get(node.remoting_address or "")
            version = vitals and vitals.runtime.text("productVersion", "brokerVersionDesc")
            if version:
                by_version.setdefault(version, []).append(node.id or str(node.remoting_address))
        if len(by_version) > 1:
            versions = "; ".join(
                f"{', '.join(nodes)}: {version}" for version, nodes in sorted(by_version.items())
            )
            yield warning(
                "versions-differ",
                group.group,
                f"The nodes of {group.group} run different versions ({versions}).",
                "Good for the time of an upgrade only: bring all nodes to one version.",
            )


def check_limits(facts: Facts) -> Iterator[Finding]:
    """Files and memory, where the broker reports them."""
    for address, vitals in facts.vitals.items():
        number = vitals.runtime.integer
        files, files_max = number("openFiles"), number("openFilesMax")
        if files is not None and files_max and files >= files_max * FILES_WARNING_RATIO:
            yield warning(
                "files-near-limit",
                address,
                f"{address} has {files} of {files_max} possible files and connections open.",
                "Raise its limit (ulimit -n, LimitNOFILE) before further clients are turned away.",
            )
        available, total_kib = number("memoryAvailableBytes"), number("totalMemKBytes")
        if available is not None and total_kib and available < total_kib * 1024 * MEMORY_WARNING_RATIO:
            yield warning(
                "memory-low",
                address,
                f"The machine of {address} has {available / 1024**2:.0f} MiB of memory left.",
                "See what uses it: a machine that swaps makes slow disks and elections.",
            )


def check_dispatch(facts: Facts) -> Iterator[Finding]:
    for address, vitals in facts.vitals.items():
        behind = vitals.runtime.integer("dispatchBehindBytes") or 0
        if behind > DISPATCH_BYTES_MAX:
            yield warning(
                "dispatch-behind",
                address,
                f"{address} has {behind / 1024**2:.0f} MiB of its log that consumers cannot see yet.",
                "It waits for the commit, or builds its queues after a start; if it grows, check the CPU.",
            )
