"""The `clankersd` command."""

import argparse
import dataclasses
import gc
import importlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import platformdirs
import structlog

from clankers_protocol import VERSION
from clankers_protocol.paths import Paths, UserFolders, default_paths
from clankers_protocol.terminal import sanitize
from clankersd import config
from clankersd.config import ConfigError
from clankersd.hook_start import HookStart, secure_environment
from clankersd.wire.sockets import StartRefused

if TYPE_CHECKING:
    from clankersd.app import Daemon

GC_THRESHOLD_OBJECTS = 20_000
"""Allocation threshold of the garbage collector. Requests leave few reference cycles, and with Python's default of 700
the collector took a twentieth of their time."""

SWITCH_INTERVAL_SECONDS = 0.0005
"""Time that a thread may hold the interpreter lock while another waits for it. An event passes between the event loop
and the connection's thread several times; with Python's default of 5 ms each pass could wait that long for a search."""

EXIT_REFUSED = 1
EXIT_CONFIG = 78  # EX_CONFIG: systemd does not restart the daemon after it

_EPILOG = """\
Settings are read from clankers.toml, then from CLANKERS_… variables, then from flags; later sources win.
See `clankers-ctl config show`. On SIGTERM or SIGINT the daemon finishes the requests in flight and
stops; a second signal stops it immediately. On SIGHUP it reloads the settings.
Exit codes: 0 stopped, 1 cannot start, 2 wrong usage, 78 wrong configuration.
"""


def main() -> None:
    """Run the daemon until a signal or its idle limit stops it."""
    options = _parser().parse_args()
    os.umask(0o077)
    # numpy's threads would compete with ours for the cores: a search is faster with one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    # The tokenizer's thread pool panics where no thread can be started, and is no faster for short texts.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    flags = {"log_level": options.log_level} if options.log_level else {}
    try:
        paths = _paths(options)
        if options.check_config or options.show_config or options.set_config:
            _run_config_command(options, paths, flags)
            return
        by_hook = None
        if options.started_by_hook is not None:
            by_hook = HookStart.parse(paths.database, options.started_by_hook)
            secure_environment()
        anyio.run(_run, paths, flags, by_hook, backend_options={"use_uvloop": _has_uvloop()})
    except* ConfigError as group:
        _exit_with_error(group, EXIT_CONFIG)
    except* (StartRefused, OSError) as group:
        _exit_with_error(group, EXIT_REFUSED)


def _has_uvloop() -> bool:
    try:
        importlib.import_module("uvloop")
    except Exception:  # missing, or built for another system: the loop of the standard library is slower
        return False
    return True


def _run_config_command(options: argparse.Namespace, paths: Paths, flags: Mapping[str, Any]) -> None:
    """Check, show or change the settings without starting the daemon."""
    if options.set_config:
        key, value = options.set_config
        config.write_setting(paths.config, key, msgspec.json.decode(value))
    settings = config.load(paths.config, flags).describe()
    if not options.check_config:
        sys.stdout.write(msgspec.json.encode(settings).decode())


def _exit_with_error(group: BaseExceptionGroup[Exception], code: int) -> None:
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
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="store everything in DIR/clankers")
    parser.add_argument("--db-path", type=Path, metavar="FILE", help="use this database file")
    parser.add_argument("--socket", type=Path, metavar="FILE", help="listen on this Unix socket")
    parser.add_argument("--log-path", type=Path, metavar="DIR", help="write the daily log files to this folder")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="read the settings from this file instead of clankers.toml"
    )
    parser.add_argument(
        "--log-level", choices=["debug", "info", "warn", "error"], help="log this level and those above it"
    )
    parser.add_argument("--check-config", action="store_true", help="check the settings and exit")
    parser.add_argument("--show-config", action="store_true", help="print the settings as JSON and exit")
    parser.add_argument(
        "--set-config",
        nargs=2,
        metavar=("KEY", "JSON"),
        help="write a setting to the file (null removes it), print all settings as JSON and exit",
    )
    parser.add_argument(
        "--started-by-hook",
        nargs="?",
        const="",
        metavar="VARIABLES",
        help="ignore settings in the environment; VARIABLES (comma-separated) names those that the hook removed",
    )
    parser.add_argument("--version", action="version", version=f"clankersd {VERSION}")
    return parser


def _paths(options: argparse.Namespace) -> Paths:
    environ: Mapping[str, str] = os.environ
    if options.data_root:
        environ = {**environ, "CLANKERS_DATA_PATH": str(options.data_root)}
    options_by_path = {
        "database": options.db_path,
        "socket": options.socket,
        "logs": options.log_path,
        "config": options.config,
    }
    chosen = {name: path.expanduser().absolute() for name, path in options_by_path.items() if path}
    folders = UserFolders(platformdirs.user_data_path(), platformdirs.user_config_path())
    return dataclasses.replace(default_paths(environ, folders), **chosen)


async def _run(paths: Paths, flags: Mapping[str, Any], by_hook: HookStart | None) -> None:
    from clankersd.app import running  # slow to load, and not needed to check the settings

    # Signals are caught before any client can connect.
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with running(paths, flags, by_hook) as daemon, anyio.create_task_group() as tasks:
            gc.freeze()  # exempt what was imported and opened so far from collection
            gc.set_threshold(GC_THRESHOLD_OBJECTS)
            gc.enable()
            tasks.start_soon(_handle_signals, signals, daemon)
            await daemon.stopping.wait()
            tasks.cancel_scope.cancel()


async def _handle_signals(signals: AsyncIterator[signal.Signals], daemon: "Daemon") -> None:
    async for number in signals:
        if number == signal.SIGHUP:
            await _reload(daemon)
            continue
        structlog.get_logger(component="daemon").info("stopping", signal=signal.Signals(number).name)
        # Restore the default action: a second signal ends the process immediately.
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        daemon.stopping.set()
        return


async def _reload(daemon: "Daemon") -> None:
    try:
        await daemon.reload()
    except ConfigError as error:
        structlog.get_logger(component="daemon").error("configuration not reloaded", problem=str(error))
