"""The rule of the quotas: rates, debts, requests in flight, whose quota it is, and what is remembered."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting import quotas
from remoting.quotas import BURST_S, Kind, Quota, QuotaRules, Share, Shares, Usage, networks


@dataclass(eq=False)
class Member:
    unanswered: int = 0


LIMITED = Quota(requests_per_s=1)


def test_a_holder_may_use_a_second_of_its_rate_at_once_and_then_has_a_debt() -> None:
    share, quota = Share("a"), Quota(requests_per_s=100)
    share.charge(quota, 50.0, 100, 0)
    assert share.debt_s(50.0) == 0
    share.charge(quota, 50.0, 25, 0)
    assert (share.debt_s(50.0), share.dearest) == (0.25, Kind.REQUESTS)
    assert share.debt_s(50.25) == 0
    share.charge(quota, 90.0, 50, 0)
    assert share.debt_s(90.0) == -0.5  # unused time is not saved beyond the burst


def test_the_debt_is_that_of_the_dearer_rate() -> None:
    share, quota = Share("a"), Quota(requests_per_s=100, bytes_per_s=1000)
    share.charge(quota, 0.0, 110, 3000)
    assert (share.debt_s(0.0), share.dearest) == (2.0, Kind.BYTES)


def test_a_quota_of_0_is_none() -> None:
    share = Share("a")
    share.charge(Quota(), 0.0, 10**9, 10**12)
    assert share.debt_s(0.0) == float("-inf")
    member = Member(10**9)
    share.join(member)
    assert share.excess(Quota(), 0.0, member) == 0
    assert Quota().is_off
    assert not any(Quota(**{name: 1}).is_off for name in Quota.__slots__)


@given(
    rate=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 500)), min_size=1, max_size=40),
)
def test_who_waits_for_each_debt_never_gets_more_than_the_rate_and_a_burst(
    rate: int, steps: list[tuple[float, int]]
) -> None:
    share, quota = Share("a"), Quota(requests_per_s=rate)
    now_s, served = 0.0, 0
    for pause_s, requests in steps:
        now_s += pause_s
        before = served
        served += requests
        assert before <= rate * (now_s + BURST_S) + 1e-6 * rate
        share.charge(quota, now_s, requests, 0)
        now_s += max(0.0, share.debt_s(now_s))


def test_requests_in_flight_are_counted_over_all_connections() -> None:
    share, quota = Share("a"), Quota(in_flight_max=10)
    one, other = Member(6), Member(4)
    share.join(one)
    share.join(other)
    assert share.excess(quota, 1.0, one) == 0
    assert share.excess(quota, 1.0, other) == 0
    other.unanswered = 7
    assert share.excess(quota, 2.0, other) == 3
    one.unanswered = 0  # answered, and nothing has come from it since
    assert share.excess(quota, 3.0, other) == 0
    share.leave(other)
    assert (share.in_flight, share.connections) == (0, 1)


@pytest.mark.parametrize(
    ("host", "holder"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("2001:db8::ffff:0:0:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.2", None),
        ("::1", None),
        ("192.168.3.4", None),
        ("", None),
    ],
)
def test_whose_quota_an_address_uses(host: str, holder: str | None) -> None:
    assert QuotaRules(LIMITED, exempt=networks("192.168.0.0/16, 10.1.1.1")).holder(host) == holder
    assert QuotaRules(Quota()).holder(host) is None


def test_loopback_has_quotas_if_it_is_to() -> None:
    rules = QuotaRules(LIMITED, on_loopback=True)
    assert [rules.holder(host) for host in ("127.0.0.2", "::1")] == ["127.0.0.2", "::1"]


def test_what_is_no_network_is_quoted() -> None:
    assert networks(" ") == ()
    with pytest.raises(ValueError, match="'example'"):
        networks("10.0.0.0/8,example")


def test_a_holder_is_forgotten_when_it_has_paid() -> None:
    shares = Shares(Quota(requests_per_s=10, connections_max=1))
    member, other = Member(), Member()
    share = shares.join("a", member, 0.0)
    assert (shares.has_room("a"), shares.has_room("b")) == (False, True)
    share.charge(shares.quota, 0.0, 50, 0)
    shares.leave(share, member, 0.0)
    assert shares.join("a", member, 1.0) is share  # to connect again does not help
    shares.leave(share, member, 1.0)
    shares.join("b", other, 4.9)
    assert len(shares) == 2
    shares.join("b", member, 5.1)
    assert [each.name for each in shares] == ["b"]


def test_a_changed_quota_forgives_debts() -> None:
    shares, member = Shares(Quota(requests_per_s=1)), Member()
    share = shares.join("a", member, 0.0)
    share.charge(shares.quota, 0.0, 1_000, 0)
    shares.change(Quota(requests_per_s=1_000))
    assert share.debt_s(0.0) < 0


def test_the_number_of_those_who_left_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "IDLE_MAX", 3)
    shares, member = Shares(Quota(requests_per_s=1)), Member()
    for number in range(10):
        share = shares.join(str(number), member, 0.0)
        share.charge(shares.quota, 0.0, 100, 0)
        shares.leave(share, member, 0.0)
    assert [share.name for share in shares] == ["7", "8", "9"]


def test_unread_bytes_are_those_of_the_connections_present_holders() -> None:
    address, alice, bob = Share("10.0.0.7"), Share("alice"), Share("bob")
    usage = Usage(address, request_bytes=100)
    usage.see_unread(5_000)
    usage.set_user(alice)
    usage.see_unread(4_000)
    assert (address.unread_bytes, alice.unread_bytes) == (4_000, 4_000)
    usage.set_user(bob)
    assert (address.unread_bytes, alice.unread_bytes, bob.unread_bytes) == (4_000, 0, 4_000)
    quota = Quota(requests_per_s=20)
    bob.charge(quota, 0.0, 30, 0)
    assert usage.wait_s(bob, quota, 0.0) == 0.5 + 2.0
    bob.charge(Quota(bytes_per_s=1000), 0.0, 0, 1_100)
    assert usage.wait_s(bob, Quota(bytes_per_s=1000), 0.0) == 0.5 + 4.0


@pytest.mark.parametrize("kind", Kind)
def test_every_quota_has_words(kind: Kind) -> None:
    assert "7" in Quota(7, 7, 7, 7).words(kind)
