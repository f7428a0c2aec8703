"""Fill a store with a generated week of work and keep its daemon running: python -m tests.demo FOLDER [--fill-only]

With `--messages N`, one session more has N messages.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from helpers.ctl import command
from helpers.daemon import DaemonProcess
from tests.demo.week import fill, long_session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fill-only", action="store_true")
    parser.add_argument("--messages", type=int, default=0)
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    user = folder / "user"
    user.mkdir(exist_ok=True)
    daemon = DaemonProcess(folder, HOME=str(user), XDG_DATA_HOME=str(user / "share"))
    is_new = not daemon.database.exists()
    daemon.start()
    try:
        with daemon.connect() as connection:
            if is_new:
                print("Storing a week of work …", flush=True)
                fill(connection)
            if given.messages:
                long_session(connection, given.messages)
        if given.fill_only:
            return
        print(f"For the command line: export CLANKERS_DATA_PATH={folder}", flush=True)
        subprocess.run(command("view"), env=daemon.environ, check=False)
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    finally:
        daemon.stop()
        daemon.close()


if __name__ == "__main__":
    main()
