"""A daemon process whose wall clock a test sets."""

from pathlib import Path

from helpers.daemon import DaemonProcess

DAY_SECONDS = 86_400
_PROGRAM = """
import sys, time
from pathlib import Path
shift, real = Path(sys.argv.pop(1)), time.time_ns
time.time_ns = lambda: real() + int(shift.read_text()) * 1_000_000_000
time.time = lambda: time.time_ns() / 1e9
from clankersd.__main__ import main
main()
"""


class ClockedDaemon(DaemonProcess):
    """A daemon whose clock differs from the machine's by as many seconds as `set_clock` said last."""

    def __init__(self, home: Path, seconds: int = 0, **environ: str) -> None:
        super().__init__(home, **environ)
        self._shift = home / "clock-shift"
        self.program = ("-c", _PROGRAM, str(self._shift))
        self.set_clock(seconds)

    def set_clock(self, seconds: int) -> None:
        """Set the daemon's clock so many seconds ahead of the machine's, at once and also while it runs."""
        written = self._shift.with_suffix(".new")
        written.write_text(str(seconds))
        written.rename(self._shift)
