"""Hooks, and daemons started by hooks, in a hostile environment; counting of lost events."""

import json
import os
import resource
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, running_daemon
from helpers.hook import EVENT, autostarting, hook, linux, spooled
from helpers.waiting import eventually

from clankers.aio import AsyncClient
from clankers.client import Client
from clankers.messages import DaemonUnavailable
from clankers_protocol.admin import Health
from clankersd import hook_start
from clankersd.config import Config, load
from clankersd.hook_start import HookStart, record_path

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

HOSTILE = (
    'extract = "model"\nchat_url = "http://127.0.0.1:9/v1"\nchat_model = "m"\nembedder = "ollama"\nquery_rows = 7\n'
)
OTHER_UID = 12345

HARMLESS = {
    "chat_calls_per_hour", "chat_calls_per_session", "chat_characters", "chat_messages", "chat_model", "chat_seconds",
    "chunk_overlap", "chunk_tokens", "database_schema", "database_shared", "database_write_seconds",
    "document_megabytes", "document_seconds", "embedding_cache_entries",
    "hnsw_ef_construction", "hnsw_ef_search", "hnsw_m",
    "extract_days", "extract_memories", "extract_quiet_minutes", "hook_autostart", "idle_exit_seconds", "index_sources",
    "index_tools", "log_level", "maintain_hours", "max_connections", "memory_archive_below", "memory_importance_weight",
    "memory_outdated_factor", "memory_pinned_factor", "memory_promote_uses", "memory_recency_weight",
    "memory_salience_weight", "query_rows", "query_seconds", "recall", "recall_characters", "recall_seconds",
    "request_seconds", "schedule_lease_seconds", "search_seconds", "slow_request_seconds", "sync_minutes",
    "tool_output_characters", "watch_agent_files", "watch_debounce_ms", "watch_extra", "watch_poll", "watch_projects",
    "watch_roots",
}  # fmt: skip
"""Settings that neither send nor delete data, nor choose code or sessions to load. Decide on each new one."""


def settings(daemon: DaemonProcess) -> dict[str, Any]:
    with daemon.connect() as connection:
        found = connection.call("daemon.config")["settings"]
    return {each["key"]: each["value"] for each in found}


def ignored(daemon: DaemonProcess) -> set[str]:
    with daemon.connect() as connection:
        return {each["key"] for each in connection.call("daemon.config")["ignored"]}


def start_by_hook(daemon: DaemonProcess, **environ: str) -> None:
    hook(daemon.environ | environ, EVENT)

    def listens() -> bool:  # the socket is there a moment before
        with suppress(OSError), daemon.connect():
            return True
        return False

    eventually(listens, "a daemon listens")


# --- Settings


def test_hook_started_daemon_takes_no_setting_from_the_environment(home: Path) -> None:
    hostile = {
        "CLANKERS_EXTRACT": "model",
        "CLANKERS_CHAT_URL": "http://127.0.0.1:9/v1",
        "CLANKERS_CHAT_KEY": "secret-key",
        "CLANKERS_EMBEDDER": "openai",
        "CLANKERS_EMBEDDER_URL": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "SSL_CERT_FILE": "/repo/ca.pem",
        "PYTHONPATH": "/repo",
        "PATH": "/repo/bin",
        "TMPDIR": str(home),
    }
    with autostarting(home) as daemon:
        start_by_hook(daemon, **hostile)
        found = settings(daemon)
        assert (found["extract"], found["chat_url"], found["embedder"]) == ("off", "", "none")
        assert ignored(daemon) == {"extract", "chat_url", "chat_key", "embedder", "embedder_url"}
        with daemon.connect() as connection:
            report, pid = connection.call("health"), connection.call("daemon.status")["pid"]
        assert "chat_url" in report["warnings"][0]
        assert "Ignored chat_url from CLANKERS_CHAT_URL" in ctl(daemon, "config", "show").err
        assert "setting ignored" in "".join(path.read_text() for path in daemon.logs.glob("*.jsonl"))
        checks = ctl(daemon, "doctor", "--json").json["checks"]
        assert [check["state"] for check in checks if check["name"] == "settings"] == ["warning"]
        environ = Path(f"/proc/{pid}/environ")
        if environ.exists():
            passed = dict(line.split("=", 1) for line in environ.read_text().split("\0") if line)
            assert {"CLANKERS_DATA_PATH", "CLANKERS_CONFIG_PATH", "HOME"} <= set(passed)
            assert not (set(hostile) - {"PATH"}) & set(passed)
            assert passed["PATH"] == "/usr/local/bin:/usr/bin:/bin"


@pytest.mark.parametrize("how", ["CLANKERS_CONFIG_PATH", "XDG_CONFIG_HOME", "HOME"])
def test_hook_started_daemon_ignores_remote_settings_in_a_file_that_the_environment_names(home: Path, how: str) -> None:
    places = {
        "CLANKERS_CONFIG_PATH": home / "repo" / "settings.toml",
        "XDG_CONFIG_HOME": home / "repo" / "clankers" / "clankers.toml",
        "HOME": home / "repo" / ".config" / "clankers" / "clankers.toml",
    }
    places[how].parent.mkdir(parents=True)
    places[how].write_text(HOSTILE)
    with autostarting(home) as daemon:
        if how != "CLANKERS_CONFIG_PATH":
            del daemon.environ["CLANKERS_CONFIG_PATH"]
        start_by_hook(daemon, **{how: str(places[how] if how == "CLANKERS_CONFIG_PATH" else home / "repo")})
        found = settings(daemon)
        assert found["query_rows"] == 7  # it is this file
        assert (found["extract"], found["chat_url"], found["embedder"]) == ("off", "", "static")
        assert {"extract", "chat_url", "embedder"} <= ignored(daemon)
        with daemon.connect() as connection:
            connection.call("daemon.reload")
        assert settings(daemon)["chat_url"] == ""
        ran = ctl(daemon, "config", "set", "chat_url", "http://127.0.0.1:9/v2")
        assert "Ignored chat_url" in ran.err


def test_hook_started_daemon_trusts_the_file_of_a_daemon_that_the_user_started(home: Path) -> None:
    with autostarting(home) as daemon:
        (home / "clankers.toml").write_text('embedder = "none"\nchat_url = "http://127.0.0.1:9/v1"\n')
        daemon.start()
        daemon.stop()
        daemon.close()
        start_by_hook(daemon)
        assert settings(daemon)["chat_url"] == "http://127.0.0.1:9/v1"
        assert ignored(daemon) == set()


@pytest.mark.parametrize(
    ("values", "sending"),
    [
        ({"reranker": "none", "reranker_weight": 0.5, "log_level": "info"}, set()),
        ({"reranker": "onnx", "reranker_model": "/m", "log_level": "info"}, {"reranker", "reranker_model"}),
        ({"reranker": "jina", "reranker_model": "m"}, {"reranker", "reranker_model"}),
        ({"reranker_url": "http://file", "reranker_key_file": "/k"}, {"reranker_url", "reranker_key_file"}),
        ({"embedder": "static", "embedder_weight": 0.3}, set()),
        ({"embedder": "onnx", "embedder_fallback": "openai"}, {"embedder", "embedder_fallback"}),
        ({"embedder": "ollama", "embedder_weight": 0.3}, {"embedder", "embedder_weight"}),
    ],
)
def test_settings_that_only_the_owner_may_make_are_known(values: dict[str, Any], sending: set[str]) -> None:
    assert hook_start.owner_settings(values) == sending


def select(path: Path, database: Path) -> tuple[str, list[str]]:
    """Return the chat_url in force, and the reasons why others are ignored."""
    loaded = load(path, {}, {"CLANKERS_CHAT_URL": "http://environment"}, HookStart(database))
    return loaded.config.chat_url, [each.reason for each in loaded.ignored]


def test_hook_started_daemon_trusts_the_default_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "clankers.toml"
    path.write_text('chat_url = "http://file"\n')
    monkeypatch.setattr(hook_start, "default_path", lambda: [path])
    assert select(path, tmp_path / "db") == ("http://file", [])


@pytest.mark.parametrize("place", ["clankers.toml", "."])
@pytest.mark.parametrize("fault", ["mode", pytest.param("owner", marks=as_root)])
def test_hook_started_daemon_ignores_remote_settings_in_a_file_that_others_can_write(
    tmp_path: Path, place: str, fault: str
) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    path = folder / "clankers.toml"
    path.write_text('chat_url = "http://file"\n')
    path.chmod(0o600)
    record_path(tmp_path / "db", path)
    assert select(path, tmp_path / "db") == ("http://file", [])
    if fault == "mode":
        (folder / place).chmod(0o777)
    else:
        os.chown(folder / place, OTHER_UID, OTHER_UID)
    url, reasons = select(path, tmp_path / "db")
    assert url == ""
    assert ("chmod go-w" if fault == "mode" else "another user") in reasons[0]


def test_hook_started_daemon_ignores_a_record_beside_a_link_to_the_database(tmp_path: Path) -> None:
    for name in ("home", "repo"):
        (tmp_path / name).mkdir()
    database, planted = tmp_path / "home" / "clankers.db", tmp_path / "repo" / "clankers.db"
    database.touch()
    path = tmp_path / "repo" / "clankers.toml"
    path.write_text('chat_url = "http://file"\n')
    record_path(planted, path)  # as it would lie in a repository
    planted.symlink_to(database)
    assert select(path, planted)[0] == ""


def test_hook_started_daemon_ignores_a_record_that_a_repository_brings(tmp_path: Path) -> None:
    path = tmp_path / "clankers.toml"
    path.write_text('chat_url = "http://file"\n')
    record_path(tmp_path / "db", path)
    assert select(path, tmp_path / "db")[0] == "http://file"
    record = tmp_path / "db.settings-path"
    for text in (record.read_bytes(), f"{path}\n".encode()):  # a copy of a real one, and one that names only the file
        repository = tmp_path / f"repository-{len(text)}"
        repository.mkdir()
        (repository / "db.settings-path").write_bytes(text)
        (repository / "db.settings-path").chmod(0o600)
        assert select(path, repository / "db")[0] == ""


def test_hook_started_daemon_takes_nothing_that_deletes_data_from_a_file_that_the_environment_names(
    home: Path,
) -> None:
    file = home / "repo.toml"
    file.write_text(
        'retention = ["sessions=1d"]\nretention_megabytes = 1\nbackup_keep = 1\nbackup_hours = 0\n'
        f'durability = "normal"\ntranscript_folders = ["{home}"]\nembedder = "onnx"\nembedder_model = "{home}"\n'
        f'reranker = "onnx"\nreranker_model = "{home}"\nquery_rows = 7\n'
    )
    with autostarting(home) as daemon:
        start_by_hook(daemon, CLANKERS_CONFIG_PATH=str(file))
        defaults, found = msgspec.to_builtins(Config()), settings(daemon)
        assert found.pop("query_rows") == 7  # it is this file
        assert found == {key: value for key, value in defaults.items() if key != "query_rows"}
        with daemon.connect() as connection:
            assert connection.call("schedule.list")["actions"] == []


def test_every_setting_is_known_to_be_harmless_or_the_owners() -> None:
    dangerous = {
        "embedder": "onnx", "embedder_fallback": "ollama", "reranker": "tei", "extract": "model",
        "retention": ["sessions=1d"],
    }  # fmt: skip
    values = {key: dangerous.get(key, "1") for key in Config.__struct_fields__}
    assert set(Config.__struct_fields__) - hook_start.owner_settings(values) == HARMLESS


# --- The socket


@contextmanager
def foreign_listener(folder: Path) -> Iterator[tuple[Path, list[bytes]]]:
    """Listen on a socket as another user; yield its path and what was sent to it."""
    path, received = folder / "theirs.sock", []
    folder.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as listener:
        os.seteuid(OTHER_UID)
        try:
            listener.bind(str(path))
            listener.listen(5)
            path.chmod(0o777)
        finally:
            os.seteuid(0)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(5)
                    received.append(connection.recv(65536))

        thread = threading.Thread(target=accept)
        thread.start()
        yield path, received
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@linux
@as_root
def test_hook_sends_nothing_to_a_socket_of_another_user(home: Path) -> None:
    with foreign_listener(home) as (path, received):
        hook(DaemonProcess(home).environ | {"CLANKERS_SOCKET_PATH": str(path)}, EVENT)
    assert received == [b""]
    (file,) = spooled(home)
    assert json.loads(file.read_bytes())["event"] == EVENT
    assert f"served by another user (uid {OTHER_UID})" in (home / "clankers" / "logs" / "hook.log").read_text()


@linux
@as_root
@pytest.mark.anyio
async def test_clients_send_nothing_to_a_socket_of_another_user(home: Path) -> None:
    with foreign_listener(home) as (path, received):
        with Client(path) as client, pytest.raises(DaemonUnavailable, match="another user"):
            client.call(Health())
        async with AsyncClient(path) as client:
            with pytest.raises(DaemonUnavailable, match="another user"):
                await client.call(Health())
    assert received == [b"", b""]


# --- Planted links and devices


def test_hook_does_not_write_through_planted_links(home: Path) -> None:
    victim = home / "victim"
    victim.write_text("precious")
    (home / "clankers").mkdir()
    (home / "logs").mkdir()
    for planted in (
        home / "clankers" / "autostart.lock",
        home / "logs" / "hook.log",
        home / "clankers" / "lost-events",
    ):
        planted.symlink_to(victim)
    (home / "clankers" / "spool").write_text("in the way, so that there is something to note and to count")
    with autostarting(home) as daemon:
        hook(daemon.environ | {"CLANKERS_LOG_PATH": str(home / "logs")}, EVENT)
        hook(daemon.environ | {"CLANKERS_LOG_PATH": str(home / "logs")}, b"", "opencode", "--start")
    assert victim.read_text() == "precious"


def test_daemon_does_not_write_its_log_or_lock_through_planted_links(home: Path) -> None:
    victim = home / "victim"
    victim.write_text("precious")
    (home / "clankers").mkdir()
    (home / "clankers" / "clankers.db.lock").symlink_to(victim)
    daemon = DaemonProcess(home).start(wait=False)
    assert daemon.wait() == 1
    daemon.close()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("place", ["/dev/zero", "pipe"])
def test_hook_does_not_block_on_settings_that_are_not_a_regular_file(home: Path, place: str) -> None:
    if place == "pipe":
        os.mkfifo(home / "pipe")
    environ = DaemonProcess(home).environ | {"CLANKERS_CONFIG_PATH": str(home / place)}
    environ.pop("CLANKERS_HOOK_AUTOSTART")
    hook(environ, EVENT)
    assert len(spooled(home)) == 1
    log = home / "clankers" / "logs" / "hook.log"
    eventually(lambda: log.exists() and "not a regular file" in log.read_text(), "the daemon refuses to start")


# --- Under sudo


@as_root
def test_hook_under_sudo_gives_its_files_to_the_owner_of_the_folder(home: Path) -> None:
    os.chown(home, OTHER_UID, OTHER_UID)
    with autostarting(home) as daemon:
        hook(daemon.environ, EVENT)
    made = [home / "clankers", home / "clankers" / "spool", *spooled(home), home / "clankers" / "logs" / "hook.log"]
    assert len(made) == 4
    assert {path.stat().st_uid for path in made} == {OTHER_UID}
    assert not (home / "clankers" / "autostart.lock").exists()


@as_root
def test_hook_under_sudo_does_not_give_away_hard_links(home: Path) -> None:
    (home / "secret").write_text("of root")
    (home / "clankers" / "logs").mkdir(parents=True)
    os.link(home / "secret", home / "clankers" / "logs" / "hook.log")
    (home / "clankers" / "spool").write_text("in the way, so that there is something to note")
    os.chown(home / "clankers" / "logs", OTHER_UID, OTHER_UID)
    hook(DaemonProcess(home).environ, EVENT)
    assert (home / "secret").stat().st_uid == 0


@as_root
def test_daemon_does_not_start_in_another_users_folder(home: Path) -> None:
    (home / "clankers").mkdir()
    os.chown(home / "clankers", OTHER_UID, OTHER_UID)
    daemon = DaemonProcess(home).start(wait=False)
    assert daemon.wait() == 1
    assert "belongs to another user" in daemon.errors()
    daemon.close()


# --- Lost events


LARGE = {"message": {"id": "m", "sessionId": "s", "role": "user", "textContent": "x" * 5000}}


def full_disk() -> None:
    """No file may grow beyond what the counter and a few lines of the log take."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))


def test_hook_counts_events_that_it_cannot_spool(home: Path) -> None:
    daemon = DaemonProcess(home)
    threads = [
        threading.Thread(target=hook, args=(daemon.environ, LARGE), kwargs={"preexec_fn": full_disk}) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (home / "clankers" / "logs" / "hook.log").read_text().count("event lost: OSError") == 5
    assert list((home / "clankers" / "spool").iterdir()) == []
    with running_daemon(home) as daemon, daemon.connect() as connection:
        report = connection.call("capture.status")
        assert (report["ok"], report["lost"]["count"]) == (False, 5)
        assert "File too large" in report["lost"]["lastReason"]
        assert "5 hook events were lost" in connection.call("health")["warnings"][0]
        assert "5 events that hooks could not store" in ctl(daemon, "capture", "status").out
        checks = ctl(daemon, "doctor", "--json").json["checks"]
        (found,) = [check for check in checks if check["name"] == "lost events"]
        assert found["state"] == "problem"
        assert "5 events" in found["finding"]


def test_hook_counts_lost_events_on_a_full_disk(home: Path) -> None:
    data = home / "clankers"
    data.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(data)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a file system")
    try:
        (data / "lost-events").write_bytes(b"\n".rjust(512))  # as the daemon makes it
        (data / "logs").mkdir()
        with suppress(OSError), (data / "filler").open("wb", buffering=0) as filler:
            while filler.write(b"x" * 4096):
                pass
        hook(DaemonProcess(home).environ, LARGE)
        hook(DaemonProcess(home).environ, LARGE)
        assert (data / "lost-events").read_bytes().startswith(b"2 ")
        assert b"No space left on device" in (data / "lost-events").read_bytes()
    finally:
        subprocess.run(["umount", str(data)], check=True)


def test_lost_events_count_restarts_after_a_damaged_record(home: Path) -> None:
    (home / "clankers").mkdir()
    (home / "clankers" / "lost-events").write_bytes(b"\xff" * 900)
    (home / "clankers" / "spool").write_text("in the way")
    hook(DaemonProcess(home).environ, EVENT)
    assert (home / "clankers" / "lost-events").read_bytes().startswith(b"1 ")


def test_lost_events_of_long_ago_are_shown_but_not_reported_as_a_problem(fresh_daemon: DaemonProcess) -> None:
    (fresh_daemon.data / "lost-events").write_bytes(b"3 1000 OSError: No space left on device".ljust(511) + b"\n")
    with fresh_daemon.connect() as connection:
        report = connection.call("capture.status")
        assert (report["ok"], report["lost"]["count"]) == (True, 3)
        assert connection.call("health")["warnings"] == []
