"""The `clankersd` command, which is also `python -m clankersd`."""

import gc


def main() -> None:
    """Run the daemon until it is told to stop."""
    gc.disable()  # until it is ready: what is imported stays, and looking it through again and again delays the start
    from clankersd.main import main as run

    run()


if __name__ == "__main__":
    main()
