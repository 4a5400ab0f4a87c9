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

from tests.integration.client_runs import Report
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
DOWN_MIN_S, DOWN_MAX_S = 0.5, 5.0
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
        return self.what not in ("killed", "stopped") or len(self.victims) > 1

    def figure(self, sends: Report) -> str:
        own = [row for row in sends if self.begin_ms <= row["at_ms"] <= self.end_ms]
        failed = sum(row["status"] == "ERROR" for row in own)
        gap_ms = max(later["at_ms"] - earlier["at_ms"] for earlier, later in pairwise(own))
        return (
            f"{' and '.join(self.victims)} {self.what}, failed sends and longest gap, ms: {failed}, {gap_ms}"
        )


def kill(machines: Sequence[Machine]) -> None:
    for machine in machines:
        machine.kill()


def stop(machines: Sequence[Machine]) -> None:
    """As an operator does; nodes hand leadership over."""
    for machine in machines:
        machine.stop()


def lose_power(machines: Sequence[Machine]) -> None:
    """Nothing closes its connections."""
    cut_off(machines)
    kill(machines)


def cut_off(machines: Sequence[Machine]) -> None:
    for machine in machines:
        machine.cut()


FAULTS: Final[dict[str, Callable[[Sequence[Machine]], None]]] = {
    "killed": kill,
    "stopped": stop,
    "without power": lose_power,
    "cut off": cut_off,
}


def drawn(machines: Sequence[Machine], rng: random.Random, rounds: int) -> list[tuple[str, list[Machine]]]:
    """Faults and whom they meet. First one machine is killed, then one is stopped; the others leave it to
    chance.
    """
    chosen = [("killed", 1), ("stopped", 1)]
    chosen += [(rng.choice(("killed", *FAULTS)), rng.choice((1, 1, 2, 3))) for _ in range(2, rounds)]
    return [(what, rng.sample(list(machines), count)) for what, count in chosen]


def play(folder: Path, what: str, victims: Sequence[Machine], down_s: float) -> Round:
    """One round, to its end: all is whole again."""
    begin_ms = time.time_ns() // 1_000_000
    names = [machine.name for machine in victims]
    print(f"{what}: {names}", file=sys.stderr, flush=True)
    FAULTS[what](victims)
    time.sleep(down_s)
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
    for what, victims in drawn(machines, rng, rounds):
        played.append(play(folder, what, victims, rng.uniform(DOWN_MIN_S, DOWN_MAX_S)))
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
    yield f"sends acknowledged in {rounds} rounds, failed ones: {len(acknowledged)}, {len(failed)}"
    for each in played:
        yield each.figure(sends)


def main() -> None:
    folder, seed, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    make_network()
    machines = [Machine(folder, name, address) for name, address in MACHINES.items()]
    with showing_logs(folder, machines):
        for figure in storm(folder, machines, random.Random(seed), rounds):
            print(figure)


if __name__ == "__main__":
    main()
