"""What the core reports, as lines of the log."""

import logging

import pytest

from dledger.core.events import AppendTimedOut, Impaired, PushRefused, RoleChanged
from dledger.core.types import ResponseCode, Role
from dledger.server import EventLog


def test_a_line_brings_the_kind_and_the_fields_of_its_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = EventLog("n0")
    log.report(RoleChanged(Role.LEADER, 3, "n0", "elected"))
    log.report(PushRefused("n1", 41, ResponseCode.DISK_FULL))
    role, push = caplog.records
    assert role.getMessage().startswith("[n0] RoleChanged(")
    assert (role.__dict__["event"], role.__dict__["fields"]) == (
        "RoleChanged",
        {"role": "LEADER", "term": 3, "leader_id": "n0", "reason": "elected"},
    )
    assert push.__dict__["fields"] == {"peer": "n1", "first_index": 41, "code": "DISK_FULL"}


def test_what_somebody_may_have_to_see_to_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog("n0")
    log.report(AppendTimedOut(41, 60))
    log.report(Impaired("its disk is empty"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
