"""The `clankersd` command."""

import argparse
import dataclasses
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import structlog

from clankers_protocol.paths import Paths, default_paths
from clankers_protocol.terminal import sanitize
from clankersd import config
from clankersd.app import Daemon, running
from clankersd.config import ConfigError
from clankersd.hook_start import HookStart
from clankersd.wire.sockets import StartRefused

GARBAGE = 20_000
"""So many objects more than before are there when garbage is looked for. Requests leave little of the kind that must be
looked for, and with Python's own 700 it took a twentieth of their time."""

SWITCH_SECONDS = 0.0005
"""How long a thread may hold the interpreter lock while another waits for it. An event passes between the event loop
and the connection's thread several times, and with Python's own 5 ms each of them could wait as long for a search."""

EXIT_REFUSED = 1
EXIT_CONFIG = 78  # EX_CONFIG: systemd does not start us again for it

_EPILOG = """\
Settings come from clankers.toml, then CLANKERS_… variables, then flags; see `clankers-ctl config show`.
SIGTERM and SIGINT finish what is in flight and stop, a second one stops at once; SIGHUP reads the
settings again. Exit codes: 0 stopped, 1 cannot start, 2 wrong usage, 78 wrong configuration.
"""


def main() -> None:
    """Run the daemon until it is told to stop."""
    options = _parser().parse_args()
    os.umask(0o077)
    # numpy's threads would fight with ours for the cores: one search is quicker with one of them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.setswitchinterval(SWITCH_SECONDS)
    # The tokenizer's thread pool panics where no thread can be started; it is no quicker for texts as short as ours.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    flags = {"log_level": options.log_level} if options.log_level else {}
    try:
        if options.check_config:
            config.load(_paths(options).config, flags)
            return
        paths = _paths(options)
        by_hook = None
        if options.started_by_hook is not None:
            by_hook = HookStart.parse(paths.database, options.started_by_hook)
        anyio.run(_run, paths, flags, by_hook, backend_options={"use_uvloop": find_spec("uvloop") is not None})
    except* ConfigError as group:
        _give_up(group, EXIT_CONFIG)
    except* StartRefused as group:
        _give_up(group, EXIT_REFUSED)
    except* OSError as group:
        _give_up(group, EXIT_REFUSED)


def _give_up(group: BaseExceptionGroup[Exception], code: int) -> None:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    sys.stderr.write(sanitize(f"clankersd: {error}\n"))
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clankersd",
        description="The local memory of every coding agent on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="keep everything in DIR/clankers")
    parser.add_argument("--db-path", type=Path, metavar="FILE", help="the database")
    parser.add_argument("--socket", type=Path, metavar="FILE", help="the socket to listen on")
    parser.add_argument("--log-path", type=Path, metavar="DIR", help="the folder of the daily logs")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the settings, instead of clankers.toml")
    parser.add_argument("--log-level", choices=["debug", "info", "warn", "error"], help="the least level to log")
    parser.add_argument("--check-config", action="store_true", help="only say whether the settings are valid")
    parser.add_argument(
        "--started-by-hook",
        nargs="?",
        const="",
        metavar="VARIABLES",
        help="trust no setting in the environment; VARIABLES, separated by commas, were left out of it",
    )
    parser.add_argument("--version", action="version", version=f"clankersd {version('clankers')}")
    return parser


def _paths(options: argparse.Namespace) -> Paths:
    environ: Mapping[str, str] = os.environ
    if options.data_root:
        environ = {**environ, "CLANKERS_DATA_PATH": str(options.data_root)}
    given = {
        "database": options.db_path,
        "socket": options.socket,
        "logs": options.log_path,
        "config": options.config,
    }
    chosen = {name: path.expanduser().absolute() for name, path in given.items() if path}
    return dataclasses.replace(default_paths(environ), **chosen)


async def _run(paths: Paths, flags: Mapping[str, Any], by_hook: HookStart | None) -> None:
    # Signals are caught before anybody can know that we are there.
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with running(paths, flags, by_hook) as daemon, anyio.create_task_group() as tasks:
            gc.freeze()  # what is there by now stays: garbage is looked for in the rest
            gc.set_threshold(GARBAGE)
            gc.enable()
            tasks.start_soon(_obey, signals, daemon)
            await daemon.stopping.wait()
            tasks.cancel_scope.cancel()


async def _obey(signals: AsyncIterator[signal.Signals], daemon: Daemon) -> None:
    async for number in signals:
        if number == signal.SIGHUP:
            await _reload(daemon)
            continue
        structlog.get_logger(component="daemon").info("stopping", signal=signal.Signals(number).name)
        # From here the default action stands again: a second signal ends the process at once.
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        daemon.stopping.set()
        return


async def _reload(daemon: Daemon) -> None:
    try:
        await daemon.reload()
    except ConfigError as error:
        structlog.get_logger(component="daemon").error("configuration kept as it was", problem=str(error))
