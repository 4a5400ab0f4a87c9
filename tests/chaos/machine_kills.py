"""`python -m tests.chaos.machine_kills FOLDER SEED ROUNDS`: one machine or several of a cluster are killed,
lose their power or are cut off while a stock Java producer sends. The machines are those of
`tests.integration.machines`.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.integration.machines import (
    ENVIRONMENT,
    MACHINES,
    Clients,
    Machine,
    environment,
    is_whole,
    make_network,
    showing_logs,
)
from tests.integration.waiting import wait_for

WHOLE_LIMIT_S: Final = 120.0
DOWN_MAX_S: Final = 5.0
GRACE_MS: Final = 5_000
"""A send that fails may have begun so long before: three tries, which end after 3 s."""


@dataclass(frozen=True, slots=True)
class Round:
    """What happened to which machines, and between which Unix times (ms) sends may have failed."""

    what: str
    victims: Sequence[str]
    begin_ms: int
    end_ms: int

    @property
    def may_fail_sends(self) -> bool:
        """One machine whose connections are closed costs no send."""
        return self.what != "killed" or len(self.victims) > 1


def kill(machines: Sequence[Machine]) -> None:
    for machine in machines:
        machine.kill()


def lose_power(machines: Sequence[Machine]) -> None:
    """Nothing closes its connections."""
    cut_off(machines)
    kill(machines)


def cut_off(machines: Sequence[Machine]) -> None:
    for machine in machines:
        machine.cut()


FAULTS: Final[dict[str, Callable[[Sequence[Machine]], None]]] = {
    "killed": kill,
    "without power": lose_power,
    "cut off": cut_off,
}


def play(folder: Path, machines: Sequence[Machine], rng: random.Random) -> Round:
    """One round, to its end: all is whole again."""
    what = rng.choice(("killed", "killed", *FAULTS))
    victims = rng.sample(list(machines), rng.choice((1, 1, 1, 2, 3)))
    begin_ms = time.time_ns() // 1_000_000
    names = [machine.name for machine in victims]
    print(f"{what}: {names}", file=sys.stderr, flush=True)
    FAULTS[what](victims)
    time.sleep(rng.uniform(0.5, DOWN_MAX_S))
    for machine in victims:
        machine.mend()
        if what != "cut off":
            machine.start()
    wait_for(f"all is whole after {what} {names}", lambda: is_whole(folder), WHOLE_LIMIT_S)
    return Round(what, names, begin_ms - GRACE_MS, time.time_ns() // 1_000_000)


def set_up(folder: Path, machines: Sequence[Machine]) -> None:
    named = ",".join(f"{name}={address}" for name, address in MACHINES.items())
    command = [str(ENVIRONMENT / "bin" / "ledgermq"), "cluster", "init", "--machines", named]
    made = folder / "made"
    subprocess.run([*command, "--data", str(made)], env=environment(folder), capture_output=True, check=True)
    for machine in machines:
        machine.run(
            f"cp -r {made / machine.name}/. /var/lib/ledgermq",
            "cp /var/lib/ledgermq/ledgermq.service /etc/systemd/system",
        )
        machine.start()
    wait_for("the cluster is whole", lambda: is_whole(folder), WHOLE_LIMIT_S)


def storm(folder: Path, machines: Sequence[Machine], rng: random.Random, rounds: int) -> Iterator[str]:
    """Raises AssertionError when an acknowledged message is lost, or a send failed that had no reason to."""
    set_up(folder, machines)
    clients = Clients(folder)
    clients.wait_sends()
    played = []
    for _ in range(rounds):
        played.append(play(folder, machines, rng))
        clients.wait_sends()
    sends = clients.sends()
    failed = [row for row in sends if row["status"] == "ERROR"]
    allowed = [each for each in played if each.may_fail_sends]
    surprising = [
        row for row in failed if not any(each.begin_ms <= row["at_ms"] <= each.end_ms for each in allowed)
    ]
    assert surprising == [], played
    acknowledged = {row["number"] for row in sends if row["status"] == "SEND_OK"}
    consumed = {int(row["number"]) for row in clients.consumed("Books", len(acknowledged))}
    assert acknowledged <= consumed, sorted(acknowledged - consumed)[:20]
    gap_ms = max(
        (
            later["at_ms"] - earlier["at_ms"]
            for each in played
            if not each.may_fail_sends
            for earlier, later in pairwise(sends)
            if each.begin_ms <= earlier["at_ms"] <= each.end_ms
        ),
        default=None,
    )
    yield f"sends acknowledged, failed, in rounds: {len(acknowledged)}, {len(failed)}, {rounds}"
    yield f"longest time between two sends when one machine is killed, ms: {gap_ms}"


def main() -> None:
    folder, seed, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    make_network()
    machines = [Machine(folder, name, address) for name, address in MACHINES.items()]
    with showing_logs(folder, machines):
        for figure in storm(folder, machines, random.Random(seed), rounds):
            print(figure)


if __name__ == "__main__":
    main()
