"""A cluster of pure nodes, moved by hand: every message, every disk write and the time are commands.

Nothing happens by itself. Messages wait in the links until `deliver`, what must be durable waits until
`persist`; `stabilize` does both until nothing is left. Time stands still but for `tick` and `run`.
"""

from collections.abc import Callable
from dataclasses import fields

from dledger.core.config import Config
from dledger.core.membership import CHANGING_MEMBERS_LEVEL, Configuration, MemberRole
from dledger.core.membership import Member as GroupMember
from dledger.core.output import Rejection
from dledger.core.reads import FIRST_ROUND
from dledger.core.types import HardState, Impairment, Role
from tests.golden.dledger_host import FixedRng, Hosts, InFlight, Member
from tests.golden.runner import Command, parse_command
from tests.golden.words import configuration_words, message_words
from tests.support.memory_log import MemoryLog

ROUNDS_MAX = 500
SETTINGS = tuple(field for field in fields(Config) if field.init)
VOTE_ROUNDS_MAX = 8


def of_role(name: str, role: MemberRole, replaces: str | None = None) -> GroupMember:
    """A member without an address: traces find members by name."""
    return GroupMember(name, "", 0, role, replaces)


def parse_member(word: str) -> GroupMember:
    """n0, n1:learner, n2:joining>n1"""
    word, _, replaces = word.partition(">")
    name, _, role = word.partition(":")
    return of_role(name, MemberRole(role or "voter"), replaces or None)


class Cluster(Hosts):
    """Runs commands; `run` returns the lines that the command printed."""

    def run(self, command: Command) -> list[str]:
        action: Callable[[Command], None] | None = getattr(self, f"do_{command.name}", None)
        assert action is not None, f"no command {command.name}"
        self._lines = []
        self._is_quiet = "quiet" in command.words
        action(command.without("quiet"))
        return self._lines

    # -- commands: life ------------------------------------------------------------------------------------

    def do_cluster(self, command: Command) -> None:
        """cluster nodes=3 [fresh] [field of Config=number]...

        fresh: with empty disks, of which no node can know that they are not those of old ones.
        """
        names = tuple(f"n{number}" for number in range(command.number("nodes", 3)))
        settings: dict[str, int | str] = {
            key: int(value) if value.isdigit() else value for key, value in command.options if key != "nodes"
        }
        for rank, name in enumerate(names):
            config = Config("g", name, names, **settings)  # type: ignore[arg-type]
            self.members[name] = Member(name, config, FixedRng(rank, len(names)), MemoryLog())
            if "fresh" in command.words:
                self._impair(self.members[name], "its disk is empty", is_vote_lost=True)
            self._start(self.members[name])

    def do_join(self, command: Command) -> None:
        """join n3: with an empty disk, and a configuration file that names all nodes so far as voters."""
        name = command.words[0]
        voters = Configuration.of_voters(self.members)
        rank = len(self.members)
        settings = {field.name: getattr(self.members["n0"].config, field.name) for field in SETTINGS}
        config = Config(**{**settings, "self_id": name, "peers": voters.voters})
        member = Member(name, config, FixedRng(rank, rank + 1), MemoryLog())
        member.first = voters.with_member(of_role(name, MemberRole.LEARNER))
        member.now_ms = max(other.now_ms for other in self.members.values())
        self.members[name] = member
        self._impair(member, "its disk is empty", is_vote_lost=True)
        self._start(member)

    def do_members(self, command: Command) -> None:
        """members n0 n1 n2:joining>n1 n3:learner [at=n0] [level=3]: a leader proposes these members."""
        leaders = [each.name for each in self._up() if each.live.role is Role.LEADER]
        member = self.members[command.get("at") or leaders[-1]]
        level = command.number("level", CHANGING_MEMBERS_LEVEL)
        named = tuple(parse_member(word) for word in command.words)
        self._propose_configuration(member, Configuration(named, level))
        self._settle(member)

    def _impair(self, member: Member, reason: str, *, is_vote_lost: bool) -> None:
        old = member.impairment
        is_vote_lost = is_vote_lost or (old is not None and old.is_vote_lost)
        member.impairment = Impairment(old.repair_id + 1 if old else 1, is_vote_lost, reason)

    def do_crash(self, command: Command) -> None:
        """crash n0...: what was not persisted is gone, the checkpoint of the commit index stays."""
        for name in command.words:
            member = self.members[name]
            member.node = None
            member.store.crash()
            member.pending_state, member.pending_sends = None, []
            self.print(f"{name} crashes, log ends at {member.store.end_index}")

    def do_restart(self, command: Command) -> None:
        for name in command.words:
            self._start(self.members[name])
            self.print(self._status(self.members[name]))

    def do_checkpoint(self, command: Command) -> None:
        """checkpoint n0: its commit index survives a crash."""
        member = self.members[command.words[0]]
        member.store.save_checkpoint(member.store.disk.end_index, member.live.commit_index)

    def do_wipe(self, command: Command) -> None:
        """wipe n0: crashes and gets an empty disk."""
        member = self.members[command.words[0]]
        member.node = None
        member.store.wipe()
        member.hard_state, member.pending_state, member.pending_sends = HardState(0, None), None, []
        self._impair(member, "its disk is empty", is_vote_lost=True)
        self.print(f"{member.name} loses its disk")

    def do_damage(self, command: Command) -> None:
        """damage n0 after=1: it crashes, and recovery finds the log damaged after entry 1."""
        member = self.members[command.words[0]]
        self.do_crash(command)
        member.store.shorten(command.number("after", -1))
        self._impair(member, "its log is damaged", is_vote_lost=False)
        self.print(f"{member.name} finds its log damaged after {member.store.end_index}")

    def do_lose(self, command: Command) -> None:
        """lose n0: it crashes and loses its vote file."""
        member = self.members[command.words[0]]
        self.do_crash(command)
        entries = member.store.entries()
        member.hard_state = HardState(entries[-1].term if entries else 0, None)
        self._impair(member, "there is no vote file", is_vote_lost=True)
        self.print(f"{member.name} loses its vote")

    def do_disk(self, command: Command) -> None:
        """disk n0 stalled|running|full|free"""
        name, state = command.words
        member = self.members[name]
        if state in ("full", "free"):
            member.live.set_disk_full(state == "full")
        else:
            member.is_stalled = state == "stalled"

    def do_retain(self, command: Command) -> None:
        """retain n0 from=5: retention removes what is older."""
        member = self.members[command.words[0]]
        begin_index = command.number("from", 0)
        member.store.delete_before(begin_index)
        member.live.log_begins_at(begin_index)
        self._settle(member)

    # -- commands: network ---------------------------------------------------------------------------------

    def do_partition(self, command: Command) -> None:
        """partition n0 [n1]...: cuts them off from the others; what the cut links hold is lost."""
        side = set(command.words)
        for one in side:
            for other in self.members.keys() - side:
                self.cut.add(frozenset((one, other)))
        self.links = [flight for flight in self.links if not self._is_cut(flight)]

    def do_heal(self, command: Command) -> None:
        self.cut.clear()

    def do_disconnect(self, command: Command) -> None:
        """disconnect n0 [to=n2]: its connections to the others, or to n2, close, and they see it."""
        gone = command.words[0]
        for member in self._up():
            if member.name != gone and command.get("to") in (None, member.name):
                member.live.peer_disconnected(gone, member.now_ms)
                self._settle(member)

    def do_connect(self, command: Command) -> None:
        """connect n0: it and the others see their connections come back."""
        back = self.members[command.words[0]]
        for member in self._up():
            if member is not back:
                member.live.peer_connected(back.name, member.now_ms)
                self._settle(member)
                if back.node is not None:
                    back.node.peer_connected(member.name, back.now_ms)
        if back.node is not None:
            self._settle(back)

    def do_deliver(self, command: Command) -> None:
        """deliver [from=] [to=] [kind=] [count=] [last] [keep]: what waits now, oldest first.

        last: the newest first. keep: it stays in the link too, so that it arrives again.
        """
        for flight in self._chosen(command):
            if "keep" not in command.words:
                self.links.remove(flight)
            self._deliver(flight)

    def do_drop(self, command: Command) -> None:
        """drop [from=] [to=] [kind=] [count=] [last]"""
        for flight in self._chosen(command):
            self.links.remove(flight)
            self.print(f"{flight.sender} -> {flight.to} {message_words(flight.message)} (dropped)")

    def do_links(self, command: Command) -> None:
        """Prints what waits."""
        for flight in self.links:
            self.print(f"{flight.sender} -> {flight.to} {message_words(flight.message)} (waits)")

    def _chosen(self, command: Command) -> list[InFlight]:
        chosen = [flight for flight in self.links if self._is_chosen(flight, command)]
        if "last" in command.words:
            chosen.reverse()
        return chosen[: command.number("count", len(chosen))]

    def _is_chosen(self, flight: InFlight, command: Command) -> bool:
        return (
            command.get("from") in (None, flight.sender)
            and command.get("to") in (None, flight.to)
            and command.get("kind") in (None, flight.kind)
        )

    def _deliver(self, flight: InFlight) -> None:
        words = message_words(flight.message)
        receiver = self.members[flight.to]
        if self._is_cut(flight) or receiver.node is None:
            self.print(f"{flight.to} <- {flight.sender} {words} (lost)")
            return
        self.print(f"{flight.to} <- {flight.sender} {words}")
        receiver.node.receive(flight.sender, flight.message, receiver.now_ms)
        self._settle(receiver)

    # -- commands: time and disk ---------------------------------------------------------------------------

    def do_tick(self, command: Command) -> None:
        """tick [n0]... ms=100: their clocks go on, then they look at them once."""
        chosen = [self.members[name] for name in command.words] or list(self.members.values())
        for member in chosen:
            member.now_ms += command.number("ms", 0)
        for member in chosen:
            if member.node is not None:
                member.node.tick(member.now_ms)
                self._settle(member)

    def do_run(self, command: Command) -> None:
        """run ms=1000: time goes on from deadline to deadline, everything arriving and persisted at once."""
        left_ms = command.number("ms", 0)
        for _ in range(ROUNDS_MAX):
            self._stabilize()
            waits = [max(0, member.live.deadline_ms() - member.now_ms) for member in self._up()]
            step_ms = min([*waits, left_ms])
            for member in self.members.values():
                member.now_ms += step_ms
            left_ms -= step_ms
            due = [member for member in self._up() if member.live.deadline_ms() <= member.now_ms]
            if not due and left_ms == 0:
                return
            for member in due:
                member.live.tick(member.now_ms)
                self._settle(member)
        raise AssertionError("too many rounds")

    def do_persist(self, command: Command) -> None:
        """persist [n0]..."""
        for name in command.words or self.members:
            self._persist(self.members[name])

    def do_stabilize(self, command: Command) -> None:
        """Persists and delivers until nothing waits. Time stands still; a stalled disk stays stalled."""
        self._stabilize()

    def _stabilize(self) -> None:
        for _ in range(ROUNDS_MAX):
            is_changed = [self._persist(member) for member in self._up() if not member.is_stalled]
            flights, self.links = self.links, []
            for flight in flights:
                self._deliver(flight)
            if not any(is_changed) and not flights:
                return
        raise AssertionError("it does not come to rest")

    # -- commands: roles and entries -----------------------------------------------------------------------

    def do_campaign(self, command: Command) -> None:
        """campaign n1: its election time-out is over."""
        self._time_out(self.members[command.words[0]])

    def _time_out(self, member: Member) -> None:
        member.now_ms = max(member.now_ms, member.live.deadline_ms())
        member.live.tick(member.now_ms)
        self._settle(member)

    def do_elect(self, command: Command) -> None:
        """elect n1: it wins an election, and all that follows arrives. Prints the outcome only."""
        was_quiet, self._is_quiet = self._is_quiet, True
        self._win(self.members[command.words[0]])
        self._stabilize()
        self._is_quiet = was_quiet
        self.do_status(parse_command("status"))

    def do_vote(self, command: Command) -> None:
        """vote n1: as elect, but nothing but votes arrives. Prints nothing.

        Leases run out at the members it can reach. If their term is ahead, the first round only tells it.
        """
        self._is_quiet = True
        self._win(self.members[command.words[0]])

    def _win(self, candidate: Member) -> None:
        for member in self.members.values():
            if frozenset((candidate.name, member.name)) not in self.cut:
                member.now_ms += member.config.election_timeout_max_ms
        for _ in range(VOTE_ROUNDS_MAX):
            if candidate.live.role is not Role.LEADER:
                self._time_out(candidate)
                self._carry_votes()
        assert candidate.live.role is Role.LEADER, f"{candidate.name} is not elected"

    def _carry_votes(self) -> None:
        for _ in range(VOTE_ROUNDS_MAX):
            for member in self._up():
                self._persist(member)
            for flight in [flight for flight in self.links if "Vote" in flight.kind]:
                self.links.remove(flight)
                self._deliver(flight)

    def do_propose(self, command: Command) -> None:
        """propose n0 body=a body=b, or count=3"""
        member = self.members[command.words[0]]
        count = command.number("count", 0)
        bodies = [body.encode() for body in command.all("body")] + [b"x"] * count
        proposal = member.live.propose(len(bodies), member.now_ms)
        if isinstance(proposal, Rejection):
            self.print(f"{member.name} refuses {proposal.code.name} leader={proposal.leader_id}")
        else:
            member.store.append_bodies(proposal.first_index, proposal.term, bodies)
            self.print(f"{member.name} appends {proposal.first_index}..{proposal.last_index}@{proposal.term}")
        self._settle(member)

    def do_read(self, command: Command) -> None:
        """read n0 [count=2]: reads begin, all in one turn."""
        member = self.members[command.words[0]]
        for _ in range(command.number("count", 1)):
            read_id = member.live.read_index(member.now_ms)
            if isinstance(read_id, Rejection):
                self.print(f"{member.name} refuses {read_id.code.name} leader={read_id.leader_id}")
            else:
                self.print(f"{member.name} begins read {read_id - FIRST_ROUND}")
        self._settle(member)

    def do_transfer(self, command: Command) -> None:
        """transfer n0 to=n1"""
        member = self.members[command.words[0]]
        code = member.live.transfer_leadership(command.get("to") or "", member.now_ms)
        self.print(f"{member.name} answers {code.name}")
        self._settle(member)

    def do_status(self, command: Command) -> None:
        for name in command.words or self.members:
            member = self.members[name]
            self.print(self._status(member) if member.node else f"{name} is down")

    def do_who(self, command: Command) -> None:
        """who n0: the configurations of its log."""
        for name in command.words:
            history = self.members[name].live.members.history
            entries = history.entries if history is not None else ()
            words = [
                f"{each.index}@{each.term} {configuration_words(each.configuration)}" for each in entries
            ]
            self.print(f"{name} members: {' '.join(words) or 'of its file'}")

    def do_log(self, command: Command) -> None:
        """Prints the entries of each node: index@term "body"."""
        for name in command.words or self.members:
            entries = self.members[name].store.entries()
            text = " ".join(f'{entry.index}@{entry.term} "{entry.body.decode()}"' for entry in entries)
            self.print(f"{name} log: {text or 'empty'}")
