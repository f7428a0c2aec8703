"""Start of the daemon by a hook or by clankers-ctl: detached, at most one, without waiting for it."""

import os
import sys
import time

from clankers.hook import data_folder, open_log, read_setting, reset_signals, write_log
from clankers.spool import make_folder

RETRY_SECONDS = 30.0
"""Minimum time between two starts, so that a daemon that fails to start is not started again by every event."""

PATH_VARIABLES = (
    "CLANKERS_DATA_PATH",
    "CLANKERS_DB_PATH",
    "CLANKERS_SOCKET_PATH",
    "CLANKERS_LOG_PATH",
    "CLANKERS_CONFIG_PATH",
)
PASSED_VARIABLES = (
    *PATH_VARIABLES,
    "HOME",
    "XDG_DATA_HOME",
    "XDG_CONFIG_HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
)
"""Environment variables that the daemon inherits: they say where files are. All others may have been set by a
repository: other settings, keys, proxies, certificates, search paths."""

HOOK_VARIABLES = ("CLANKERS_HOOK_AUTOSTART", "CLANKERS_RECALL_SECONDS")
"""Settings that only the hook reads."""

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"


STARTED_RECENTLY = "it was started a moment ago"


def start_daemon(*, forced: bool = False) -> int | str:
    """Start `clankersd`; return its process id, or the reason why it was not started.

    It is not started if the settings forbid it, a service manager runs it, or it was started recently. The owner's own
    request (`forced`) needs neither the setting nor the pause.
    """
    if not forced and read_setting("hook_autostart").lower() in ("false", "0", "off", "no"):
        return "the setting hook_autostart is off"
    if is_managed_service():
        return "it is managed as a service"
    try:
        make_folder(data_folder())
        if os.stat(data_folder()).st_uid != os.geteuid():
            write_log("daemon not started: its data belongs to another user")  # happens under sudo
            return f"{data_folder()} belongs to another user"
        lock = os.open(f"{data_folder()}/autostart.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if (not forced and _was_started_recently(lock)) or not _claim_start(lock, forced):
                return STARTED_RECENTLY
            if (child := os.fork()) == 0:
                _run_daemon()
            return child
        finally:
            os.close(lock)
    except OSError as error:
        write_log(f"cannot start the daemon: {error}")
        return str(error)


def forget_start() -> None:
    """Allow the next start at once: the daemon that was started last has worked, and was stopped by its owner."""
    try:
        os.truncate(f"{data_folder()}/autostart.lock", 0)
    except OSError:
        pass


def is_managed_service() -> bool:
    """Return whether our unit is installed in systemd or launchd, which then decide when the daemon runs."""
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        return os.path.exists(f"{home}/Library/LaunchAgents/dev.clankers.clankersd.plist")
    units = f"{os.environ.get('XDG_CONFIG_HOME') or f'{home}/.config'}/systemd/user"
    return os.path.exists("/run/systemd/system") and os.path.exists(f"{units}/clankersd.socket")


def _was_started_recently(lock: int) -> bool:
    """Return whether the lock file holds a start time within the last RETRY_SECONDS.

    A time in the future does not count: the clock may have been set back.
    """
    started = os.pread(lock, 32, 0).strip()
    return started.isdigit() and 0 <= time.time_ns() - int(started) < RETRY_SECONDS * 1e9


def _claim_start(lock: int, forced: bool) -> bool:
    """Record the start time under an exclusive lock; return False if another hook was faster."""
    import fcntl  # rarely needed

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if not forced and _was_started_recently(lock):
        return False
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % time.time_ns(), 0)
    return True


def _run_daemon() -> None:
    """In the child process: give up the harness's terminal, files, folder, signals and environment, and execute the
    daemon."""
    try:
        reset_signals()
        os.setsid()
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(open_log(), 2)  # a daemon that cannot start writes the reason there
        os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), 65536))
        environ = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
        os.execve(sys.executable, _daemon_command(), environ | {"PATH": SEARCH_PATH})  # noqa: S606  # our own program
    except BaseException as error:
        write_log(f"cannot start the daemon: {type(error).__name__}: {error}")
    finally:
        os._exit(1)


def _daemon_command() -> list[str]:
    """Return a command that runs the daemon isolated from PYTHON variables and the user's site-packages."""
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = f"import sys; sys.path.append({packages!r}); from clankersd.main import main; main()"
    ignored = [
        name
        for name in sorted(os.environ)
        if name.startswith("CLANKERS_") and name not in PASSED_VARIABLES and name not in HOOK_VARIABLES
    ]
    return [sys.executable, "-I", "-c", program, f"--started-by-hook={','.join(ignored)}"]
