"""dledger.core.flow_control: so many bytes in each second, counted from the first one sent in it."""

from dledger.core.flow_control import Throttle


def test_throttle_blocks_until_the_second_is_over() -> None:
    throttle = Throttle(100)
    assert throttle.blocked_until_ms(0) is None
    throttle.sample(60, 500)
    assert throttle.blocked_until_ms(600) is None
    throttle.sample(60, 700)
    assert throttle.blocked_until_ms(700) == 1500
    assert throttle.blocked_until_ms(1499) == 1500
    assert throttle.blocked_until_ms(1500) is None


def test_next_second_begins_with_nothing_used() -> None:
    throttle = Throttle(100)
    throttle.sample(500, 0)
    throttle.sample(60, 1000)
    assert throttle.blocked_until_ms(1000) is None
    throttle.sample(40, 1001)
    assert throttle.blocked_until_ms(1001) == 2000
