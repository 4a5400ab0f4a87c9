"""A machine's clocks: a monotonic one, fast or slow, that can stand still, and Unix time, which jumps."""

WALL_ZERO_MS = 1_700_000_000_000


class MachineClock:
    """Translates world microseconds. `rate_ppm`: how many of its own pass in a million of the world's."""

    def __init__(self, zero_us: int = 0, rate_ppm: int = 1_000_000) -> None:
        self._zero_us = zero_us
        self._rate_ppm = rate_ppm
        self._stalled_world_us = 0
        self._stall_began_us: int | None = None
        self._wall_offset_ms = WALL_ZERO_MS

    @property
    def is_stalled(self) -> bool:
        return self._stall_began_us is not None

    def stall(self, world_us: int) -> None:
        """The whole machine is suspended: its monotonic clock stands still until `go_on`."""
        assert self._stall_began_us is None, "a second stall"
        self._stall_began_us = world_us

    def go_on(self, world_us: int) -> None:
        """The end of a stall. Unix time is set right at once, as a time daemon would."""
        assert self._stall_began_us is not None, "no stall"
        stalled_us = world_us - self._stall_began_us
        self._stalled_world_us += stalled_us
        self._wall_offset_ms += stalled_us // 1_000
        self._stall_began_us = None

    def jump(self, jump_ms: int) -> None:
        """Unix time is set forward, or back when negative."""
        self._wall_offset_ms += jump_ms

    def monotonic_us(self, world_us: int) -> int:
        if self._stall_began_us is not None:
            world_us = self._stall_began_us
        return self._zero_us + (world_us - self._stalled_world_us) * self._rate_ppm // 1_000_000

    def wall_ms(self, world_us: int) -> int:
        return self._wall_offset_ms + (self.monotonic_us(world_us) - self._zero_us) // 1_000

    def world_us(self, monotonic_us: int) -> int:
        """The first world microsecond at which the monotonic clock shows this, unless it stalls before."""
        own_us = monotonic_us - self._zero_us
        return self._stalled_world_us - (-own_us * 1_000_000 // self._rate_ppm)
