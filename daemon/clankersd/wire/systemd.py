"""Telling systemd how we are: sd_notify in a few lines of the standard library."""

import os
import socket

import anyio


def notify(state: str) -> None:
    """Send `state` (READY=1, STOPPING=1, …) to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.sendall(state.encode())
        except OSError:  # the manager is gone; there is nobody to tell
            return


async def keep_watchdog_fed() -> None:
    """Say twice per interval that the event loop still turns, where systemd asked for it."""
    interval = int(os.environ.get("WATCHDOG_USEC", "0")) / 1_000_000
    if not interval or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    while True:
        notify("WATCHDOG=1")
        await anyio.sleep(interval / 2)
