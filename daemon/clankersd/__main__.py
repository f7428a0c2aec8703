"""The `clankersd` command, which is also `python -m clankersd`."""

import gc


def main() -> None:
    """Run the daemon."""
    gc.disable()  # until the daemon is ready: collecting during imports only delays the start
    from clankersd.main import main as run

    run()


if __name__ == "__main__":
    main()
