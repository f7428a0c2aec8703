"""`clankers-ctl view`: the web view."""

import socket
import webbrowser
from contextlib import suppress

import click

from clankers.ctl.command import Ctl, common_options, project_option
from clankers.ctl.output import echo, print_json
from clankers_protocol import VERSION
from clankers_protocol.admin import Health

DEFAULT_PORT = 7717


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="Serve on this port. [default: 7717, or a free one]"
)
@click.option("--no-browser", is_flag=True, help="Only print the address; do not open a browser.")
@project_option("Only show this project at first")
@common_options
def view(ctl: Ctl, port: int | None, no_browser: bool, project: str | None) -> None:
    """Show sessions, memories and recall in a web page on this machine. Ctrl-C ends it.

    The page is served on the loopback interface, only while this command runs, and only to a browser that has opened
    the printed address. The daemon itself has no port.

    \b
    Examples:
      clankers-ctl view
      clankers-ctl view --project .
      clankers-ctl view --port 9000 --no-browser
    """
    ctl.call(Health())  # starts the daemon if needed
    from clankers.view.guard import Access  # slow to load, like the server
    from clankers.view.server import create_app, serve

    listener = _listen(port)
    access = Access(listener.getsockname()[1])
    app = create_app(access, str(ctl.socket) if ctl.socket else None, version=VERSION, project=project)
    if ctl.json:
        print_json({"address": access.address, "port": access.port})
    else:
        echo(f"The view is at {access.address}\nCtrl-C ends it.")
    if not no_browser:
        webbrowser.open(access.address_once)
    with listener, suppress(KeyboardInterrupt):
        serve([listener], app)


def _listen(port: int | None) -> socket.socket:
    """Listen on the loopback interface; without a given port, on the default one or any free one."""
    for candidate in (port,) if port is not None else (DEFAULT_PORT, 0):
        listener = socket.socket(socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", candidate))
            listener.listen()  # a browser that is opened before the server runs waits for it
        except OSError as error:
            listener.close()
            if port is not None:
                raise click.ClickException(f"cannot serve on port {port}: {error.strerror}") from error
        else:
            return listener
    raise click.ClickException("no port is free on the loopback interface")
