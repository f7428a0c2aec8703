"""The examples of docs/examples, run as they are."""

import subprocess
import sys
from pathlib import Path

from helpers.daemon import DaemonProcess

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_hook_example_stores_a_message(shared_daemon: DaemonProcess) -> None:
    command = [sys.executable, str(EXAMPLES / "hook.py"), "example-hook", "user", "hello from an example"]
    done = subprocess.run(command, env=shared_daemon.environ, capture_output=True, text=True, timeout=60, check=True)
    assert '"result":{"ok":true}' in done.stdout.replace(" ", "")
    with shared_daemon.connect() as rpc:
        [message] = rpc.call("message.list", sessionId="example-hook")["messages"]
    assert (message["role"], message["textContent"]) == ("user", "hello from an example")


def test_subscriber_example_prints_messages_as_they_are_stored(shared_daemon: DaemonProcess) -> None:
    command = [sys.executable, str(EXAMPLES / "subscriber.py")]
    with subprocess.Popen(command, env=shared_daemon.environ, stdout=subprocess.PIPE, text=True) as subscriber:
        try:
            assert subscriber.stdout
            assert subscriber.stdout.readline() == "waiting for messages\n"
            with shared_daemon.connect() as rpc:
                message = {
                    "id": "example-m1",
                    "sessionId": "example",
                    "role": "user",
                    "textContent": "ship it",
                }
                rpc.call("upsertMessage", message=message)
            assert subscriber.stdout.readline() == "user: ship it\n"
        finally:
            subscriber.terminate()
