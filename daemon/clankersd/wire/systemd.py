"""Notifications to systemd: the sd_notify protocol with the standard library."""

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
        except OSError:  # the service manager is gone
            return


async def feed_watchdog() -> None:
    """Report twice per watchdog interval that the event loop is alive, if systemd asked for it."""
    interval = int(os.environ.get("WATCHDOG_USEC", "0")) / 1_000_000
    if not interval or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    while True:
        notify("WATCHDOG=1")
        await anyio.sleep(interval / 2)
