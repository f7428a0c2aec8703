"""The hook starts a daemon that nobody else will: detached, at most one, and without waiting for it."""

import os
import sys
import time

from clankers.hook import data_folder, open_log, read_setting, reset_signals, write_log
from clankers.spool import make_folder

AGAIN_SECONDS = 30.0
"""A daemon that cannot start must not be started by every event."""

PATHS = ("CLANKERS_DATA_PATH", "CLANKERS_DB_PATH", "CLANKERS_SOCKET_PATH", "CLANKERS_LOG_PATH", "CLANKERS_CONFIG_PATH")
PASSED_ON = (*PATHS, "HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE")
"""Variables that say where files are. Everything else may have been set by a repository: other settings, keys, proxies,
certificates, search paths."""

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
OWN_VARIABLES = ("CLANKERS_HOOK_AUTOSTART", "CLANKERS_RECALL_SECONDS")
"""Settings that the hook itself reads."""


def start_daemon() -> None:
    """Start `clankersd`, unless the settings forbid it, a service manager keeps it, or one was started just now."""
    if read_setting("hook_autostart").lower() in ("false", "0", "off", "no") or _is_a_service():
        return
    try:
        make_folder(data_folder())
        if os.stat(data_folder()).st_uid != os.geteuid():
            write_log("the daemon is not started: its data belongs to another user")  # this is sudo
            return
        lock = os.open(f"{data_folder()}/autostart.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if not _was_just_taken(lock) and _take(lock) and os.fork() == 0:
            _become_the_daemon()
        os.close(lock)
    except OSError as error:
        write_log(f"the daemon cannot be started: {error}")


def _is_a_service() -> bool:
    """Whether systemd or launchd has our unit, and so decides when the daemon runs."""
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        return os.path.exists(f"{home}/Library/LaunchAgents/dev.clankers.clankersd.plist")
    units = f"{os.environ.get('XDG_CONFIG_HOME') or f'{home}/.config'}/systemd/user"
    return os.path.exists("/run/systemd/system") and os.path.exists(f"{units}/clankersd.socket")


def _was_just_taken(lock: int) -> bool:
    """Whether a daemon was started a moment ago; a clock that was set back does not make it so."""
    before = os.pread(lock, 32, 0).strip()
    return before.isdigit() and 0 <= time.time_ns() - int(before) < AGAIN_SECONDS * 1e9


def _take(lock: int) -> bool:
    """Whether it is us who may start the daemon: of several hooks at once only one."""
    import fcntl  # rarely needed

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if _was_just_taken(lock):
        return False
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % time.time_ns(), 0)
    return True


def _become_the_daemon() -> None:
    """In the child: nothing of the harness stays, neither its terminal, files, folder, signals nor environment."""
    try:
        reset_signals()
        os.setsid()
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(open_log(), 2)  # where it says why it cannot start
        os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), 65536))
        os.execve(sys.executable, _command(), _environ())  # noqa: S606  # our own
    except BaseException as error:
        write_log(f"the daemon cannot be started: {type(error).__name__}: {error}")
    finally:
        os._exit(1)


def _command() -> list[str]:
    """Run the daemon without what Python loads from the environment and the home directory."""
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = f"import sys; sys.path.append({packages!r}); from clankersd.main import main; main()"
    left_out = [
        name
        for name in sorted(os.environ)
        if name.startswith("CLANKERS_") and name not in PASSED_ON and name not in OWN_VARIABLES
    ]
    return [sys.executable, "-I", "-c", program, f"--started-by-hook={','.join(left_out)}"]


def _environ() -> dict[str, str]:
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {"PATH": SEARCH_PATH}
