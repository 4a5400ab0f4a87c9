"""`ledgermq member`: in this process over brokers without a network, and over an admin service."""

from pathlib import Path
from typing import Any

import pytest

from broker.admin.types import PeerView
from broker.config import load_config
from dledger.core.membership import Configuration, Member, MemberRole
from ledgermq.commands import membership
from ledgermq.commands.membership import in_bytes, progress_words
from ledgermq.local.cluster import write_files
from ledgermq.local.plan import ClusterPlan, load_plan, require_plan
from ledgermq.local.processes import namesrv_command
from tests.unit.admin_api.fake_brokers import NAMESRV
from tests.unit.admin_api.test_member_changes import ChangingGroup
from tests.unit.ledgermq.fake_admin import Asked, as_json, serving
from tests.unit.ledgermq.running import CommandLine, Ran
from tests.unit.ledgermq.test_changing import answer, type_in

ADDRESS = "127.0.0.1:10944"


class ClosedGroup(ChangingGroup):
    """As a client that commands make for themselves."""

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> ClosedGroup:
    made = ClosedGroup()
    monkeypatch.setattr("admin_api.services.client_from", lambda *_: made)
    return made


def member(run: CommandLine, *args: str) -> Ran:
    return run("member", *args, "--namesrv", NAMESRV)


def test_the_members_are_listed(run: CommandLine, group: ClosedGroup) -> None:
    joining = PeerView(
        id="n3", replication_address=ADDRESS, is_connected=True, lag_bytes=700, bytes_per_s=2_048
    )
    group.extra = (joining,)
    group.configuration = group.configuration.with_member(
        Member("n3", "127.0.0.1", 10944, MemberRole.JOINING, "n2")
    )
    group.refresh()
    ran = member(run, "list")
    assert ran.code == 0, ran.err
    assert "broker-a: n0 leads in term 3, format level 3" in ran.out
    assert "joining, replaces n2" in ran.out
    assert "300 B of 1000 B, 2.0 KiB/s" in ran.out
    assert member(run, "list", "--json").json["members"][3]["id"] == "n3"


def test_a_change_is_shown_and_asked_for(
    run: CommandLine, group: ClosedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert member(run, "add", "n3", ADDRESS).code == 2, "no terminal to ask at"
    type_in(monkeypatch, "no")
    assert (member(run, "add", "n3", ADDRESS).code, group.index) == (1, 5)
    type_in(monkeypatch, "yes")
    ran = member(run, "add", "n3", ADDRESS)
    assert ran.code == 0, ran.err
    assert "n3 at 127.0.0.1:10944 gets the whole log, without a vote." in ran.out
    assert "warning: A group of 4 voters survives no more failures than one of 3." in ran.err
    assert group.configuration.member("n3") is not None


def test_a_dry_run_does_nothing(run: CommandLine, group: ClosedGroup) -> None:
    ran = member(run, "replace", "n2", "n3", ADDRESS, "--dry-run")
    assert (ran.code, group.index, "n2 is removed" in ran.out) == (0, 5, True)


def test_every_change_is_one_of_the_leader(run: CommandLine, group: ClosedGroup) -> None:
    for args in (
        ("add", "n3", ADDRESS, "--learner"),
        ("move", "n3", "127.0.0.1:1"),
        ("promote", "n3"),
        ("remove", "n3"),
        ("demote", "n2"),
        ("replace", "n1", "n3", ADDRESS),
    ):
        ran = member(run, *args, "--yes")
        assert ran.code == 0, (args, ran.err)
    assert {each.id: each.role.value for each in group.configuration.members} == {
        "n0": "voter",
        "n1": "voter",
        "n2": "learner",
        "n3": "joining",
    }


def test_fixed_members_are_refused_by_the_command_that_lets_them_change(
    run: CommandLine, group: ClosedGroup
) -> None:
    group.configuration = Configuration(group.configuration.members, 2)
    group.refresh()
    refused = member(run, "add", "n3", ADDRESS, "--yes")
    assert (refused.code, "`ledgermq upgrade-finish` raises it" in refused.err) == (1, True)


def test_force_says_what_it_may_cost(run: CommandLine, group: ClosedGroup) -> None:
    group.down.add("n2")
    group.refresh()
    refused = member(run, "remove", "n1", "--yes")
    assert (refused.code, "It would cost the majority" in refused.err) == (1, True)
    forced = member(run, "remove", "n1", "--yes", "--force")
    assert (forced.code, "warning: Forced: of the 2 voters n0 and n2 only n0" in forced.err) == (0, True)
    assert group.configuration.voters == ("n0", "n2")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("add", "n3"), "name its address, HOST:PORT, or --local."),
        (("add", "n3", ADDRESS, "--local"), "leave the address out with --local."),
        (("add", "third", ADDRESS), "id: String should match pattern"),
        (("move", "n1", "nowhere"), "'nowhere' is not of the form host:port."),
    ],
)
def test_wrong_usage(run: CommandLine, group: ClosedGroup, args: tuple[str, ...], said: str) -> None:
    ran = member(run, *args, "--yes")
    assert (ran.code, said in ran.err) == (2, True), ran.err


def test_the_same_over_a_service(run: CommandLine) -> None:
    def answering(asked: Asked) -> Any:
        return answer(asked)

    with serving(answering) as admin:
        options = ("--group", "b", "--yes", "--admin", admin.url)
        run("member", "add", "n3", ADDRESS, *options)
        run("member", "remove", "n3", "--force", *options)
        run("member", "replace", "n2", "n3", ADDRESS, *options)
        run("member", "move", "n3", ADDRESS, *options)
        run("member", "promote", "n3", *options)
        run("member", "demote", "n3", *options)
    first = [(asked.method, asked.target, asked.body) for asked in admin.asked[::2]]
    base = "/api/v1/replication/b/members"
    assert first == [
        ("POST", base, {"id": "n3", "address": ADDRESS, "role": "voter", "force": False}),
        ("DELETE", f"{base}/n3?force=true", None),
        ("POST", f"{base}/n2/replace", {"id": "n3", "address": ADDRESS, "force": False}),
        ("PUT", f"{base}/n3/address", {"address": ADDRESS, "force": False}),
        ("PUT", f"{base}/n3/role", {"role": "voter"}),
        ("PUT", f"{base}/n3/role", {"role": "learner", "force": False}),
    ]


def row(member_id: str, role: str, received: int | None) -> dict[str, Any]:
    progress = None
    if received is not None:
        progress = {"totalBytes": 4096, "receivedBytes": received, "bytesPerS": 1024}
    return {"id": member_id, "role": role, "state": "up", "progress": progress, "isInSync": True}


def test_waiting_shows_the_progress_until_the_member_votes(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "POLL_S", 0)
    looks = [
        [row("n2", "voter", 4096), row("n3", "joining", None)],
        [row("n2", "voter", 4096), row("n3", "joining", 1024)],
        [row("n2", "voter", 4096), row("n3", "voter", 4096)],
        [row("n3", "voter", 4096)],
    ]

    def answering(asked: Asked) -> Any:
        return as_json(200, {"members": looks.pop(0)}) if asked.method == "GET" else answer(asked)

    with serving(answering) as admin:
        options = ("--group", "b", "--yes", "--wait", "--admin", admin.url)
        ran = run("member", "replace", "n2", "n3", ADDRESS, *options)
    assert ran.code == 0, ran.err
    assert ran.err.splitlines()[-4:] == [
        "n3 joining, up: not known yet",
        "n3 joining, up: 1.0 KiB of 4.0 KiB, 1.0 KiB/s",
        "n3 voter, up: all",
        "n3 votes.",
    ]


def test_waiting_ends_when_the_member_is_given_up(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def answering(asked: Asked) -> Any:
        return as_json(200, {"members": []}) if asked.method == "GET" else answer(asked)

    with serving(answering) as admin:
        ran = run("member", "promote", "n3", "--group", "b", "--yes", "--wait", "--admin", admin.url)
    assert (ran.code, "n3 is no member of b any more." in ran.err) == (1, True)


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (20 * 1024**3, "20.0 GiB")]
)
def test_bytes_are_written_as_people_do(size: int, words: str) -> None:
    assert in_bytes(size) == words


def test_without_a_rate_there_is_none() -> None:
    assert progress_words({"totalBytes": 2, "receivedBytes": 1, "bytesPerS": None}) == "1 B of 2 B"


@pytest.fixture
def local(tmp_path: Path, group: ClosedGroup) -> Path:
    write_files(ClusterPlan(tmp_path))
    return tmp_path


def test_a_member_of_a_local_cluster_gets_its_files_and_a_place_in_the_plan(
    run: CommandLine, local: Path, group: ClosedGroup
) -> None:
    before = (local / "n0" / "broker.toml").read_bytes()
    asked = member(run, "add", "n3", "--local", "--data", str(local), "--dry-run")
    assert (asked.code, (local / "n3").exists()) == (0, False), asked.err
    ran = member(run, "add", "n3", "--local", "--data", str(local), "--yes")
    assert ran.code == 0, ran.err
    assert f"Start it: ledgermq node n3 --data {local}" in ran.err
    assert group.configuration.member("n3") == Member("n3", "127.0.0.1", 10944, MemberRole.JOINING)
    config = load_config(local / "n3" / "broker.toml")
    assert (config.dledger_join, [peer.id for peer in config.peers]) == (True, ["n0", "n1", "n2", "n3"])
    assert config.replication_tls is not None
    assert (local / "certificates" / "n3.pem").exists()
    assert (local / "n3" / "broker.toml").stat().st_mode & 0o077 == 0
    assert (local / "n0" / "broker.toml").read_bytes() == before, "the first members stay as they were"
    assert [node.id for node in require_plan(local).nodes] == ["n0", "n1", "n2", "n3"]


def test_a_local_member_that_was_refused_is_in_no_plan(
    run: CommandLine, local: Path, group: ClosedGroup
) -> None:
    group.configuration = Configuration(group.configuration.members, 2)
    group.refresh()
    plan = load_plan(local)
    assert member(run, "add", "n3", "--local", "--data", str(local), "--yes").code == 1
    assert load_plan(local) == plan


def test_a_local_member_is_replaced_and_removed(run: CommandLine, local: Path, group: ClosedGroup) -> None:
    replaced = member(run, "replace", "n2", "n3", "--local", "--data", str(local), "--yes")
    assert replaced.code == 0, replaced.err
    assert [node.id for node in require_plan(local).nodes] == ["n0", "n1", "n3"]
    group.configuration = Configuration(
        tuple(Member(each, "127.0.0.1", 10914 + 10 * int(each[1:])) for each in ("n0", "n1", "n3"))
    )
    group.refresh()
    assert member(run, "remove", "n0", "--local", "--data", str(local), "--yes").code == 0
    assert [node.id for node in require_plan(local).nodes] == ["n1", "n3"]
    assert member(run, "add", "n0", "--local", "--data", str(local), "--dry-run").code == 0, (
        "it may come back"
    )
    assert "no node of a local cluster" in member(run, "add", "n9", "--local", "--data", str(local)).err


def test_a_changed_plan_is_kept_and_old_releases_refuse_it(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path).with_node("n4").without("n1")
    plan.save()
    assert load_plan(tmp_path) == plan
    assert "version = 2" in (tmp_path / "cluster.toml").read_text()
    assert plan.with_node("n1").left == ()
    assert plan.with_node("n4") == plan
    ClusterPlan(tmp_path).save()
    assert "version = 1" in (tmp_path / "cluster.toml").read_text()


def test_the_first_node_names_the_others_when_it_has_lost_its_disk(tmp_path: Path) -> None:
    """By a file that names only itself it would begin another group of the same name."""
    plan = ClusterPlan(tmp_path, node_count=1).with_node("n1").with_node("n2")
    first = plan.node("n0")
    assert plan.peers_of(first) == (first,), "n1 and n2 may never have joined"
    plan.node("n1").store.mkdir(parents=True)
    assert plan.peers_of(first) == plan.nodes
    write_files(plan)
    config = load_config(first.config_file)
    assert [peer.id for peer in config.peers] == ["n0", "n1", "n2"]
    assert not config.dledger_join, "it is a member that its group fills up"
    first.store.mkdir()
    assert plan.peers_of(first) == (first,)


def test_the_name_server_of_a_local_cluster_knows_members_that_come_later(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path)
    write_files(plan)
    assert "ledgermq://broker-a/n8" in " ".join(namesrv_command(plan, plan.namesrvs[0]).argv)


def test_one_more_folder_for_a_group_of_several_machines(run: CommandLine, tmp_path: Path) -> None:
    nodes = [part for number in range(2) for part in ("--node", f"n{number}=127.0.0.{number + 1}")]
    data = ("--data", str(tmp_path))
    run("cluster", "init", "--home", "/srv/mq", "--name", "b", "--namesrv", "10.0.0.9:1", *nodes, *data)
    made = run("cluster", "add-member", "n2=127.0.0.3", *data)
    assert made.code == 0, made.err
    assert "Then: ledgermq member add n2 127.0.0.3:10914" in made.err
    config = load_config(tmp_path / "n2" / "broker.toml")
    assert (config.group, config.dledger_join, config.namesrv_addr) == ("b", True, "10.0.0.9:1")
    assert [(peer.id, peer.host) for peer in config.peers] == [
        ("n0", "127.0.0.1"),
        ("n1", "127.0.0.2"),
        ("n2", "127.0.0.3"),
    ]
    assert config.store_path_root_dir == Path("/srv/mq/store")
    assert (tmp_path / "n2" / "certificates" / "n2.pem").exists()
    again = run("cluster", "add-member", "n2=127.0.0.3", *data)
    assert (again.code, "is there already" in again.err) == (1, True)
    nowhere = run("cluster", "add-member", "n2=127.0.0.3", "--data", str(tmp_path / "none"))
    assert (nowhere.code, "there is no group in" in nowhere.err) == (1, True)


def test_name_servers_that_know_the_brokers_must_know_the_new_one(run: CommandLine, tmp_path: Path) -> None:
    data = ("--data", str(tmp_path))
    run("cluster", "init", "--namesrv", "10.0.0.9:1", "--namesrv-tls", "--node", "n0=127.0.0.1", *data)
    made = run("cluster", "add-member", "n1=127.0.0.2", *data)
    assert made.code == 0, made.err
    assert "certificate:ledgermq://broker-a/n0,certificate:ledgermq://broker-a/n1" in made.err
