"""A connection lent to the writer's thread, so that an acknowledgement leaves as soon as the disk has it."""

from collections.abc import Callable


class Loan:
    """One frame that the thread may send by `fd`. Nobody else writes to the connection before `stop`.

    `write`: how the loop sends what is left of a frame that the connection had no room for.
    """

    def __init__(self, fd: int, frame: bytes, write: Callable[[bytes], None]) -> None:
        self.fd = fd
        self.frame = frame
        self.is_sent = False
        """After `stop`: the thread sent it. Otherwise it is as if it had never been asked to."""
        self._write = write
        self._take_back: Callable[[], int] | None = None

    def begin(self, take_back: Callable[[], int]) -> None:
        """The thread has it. `take_back` stops it, and tells how many bytes it had sent by then."""
        self._take_back = take_back

    def stop(self) -> None:
        """The thread sends nothing from now on."""
        if self._take_back is None:
            return
        sent_bytes, self._take_back = self._take_back(), None
        self.is_sent = sent_bytes > 0
        if 0 < sent_bytes < len(self.frame):
            self._write(self.frame[sent_bytes:])
