"""Settings that take effect by themselves, and settings without a daemon."""

from pathlib import Path
from typing import Any

import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.store import message
from helpers.waiting import eventually, settled


def configure(connection: RawConnection, key: str, value: Any) -> dict[str, Any]:
    return dict(connection.call("daemon.configure", key=key, value=value))


def live(connection: RawConnection) -> dict[str, Any]:
    return dict(connection.call("index.status")["live"])


def test_changed_chunk_settings_rebuild_the_index_in_the_background(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        connection.call("upsertMessage", message=message("m1", text="quartz and feldspar"))
        settled(connection)
        notes = configure(connection, "chunk_tokens", 64)["notes"]
        assert "rebuilt in the background" in notes[0]
        meanwhile = connection.call("search", query="quartz")
        assert (len(meanwhile["hits"]), meanwhile["mode"]) == (1, "hybrid")
        assert "being rebuilt" in meanwhile["degraded"]
        eventually(lambda: live(connection)["chunkTokens"] == 64, "the index is rebuilt")
        after = connection.call("search", query="quartz")
        assert (len(after["hits"]), after["degraded"]) == (1, None)


def test_sources_of_the_index_are_a_setting(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        connection.call("upsertMessage", message=message("m1", text="quartz and feldspar"))
        tool = {"id": "t1", "sessionId": "session", "toolName": "Bash", "toolOutput": "granite"}
        connection.call("upsertTool", tool=tool)
        settled(connection)

        def finds(word: str) -> bool:
            return bool(connection.call("search", query=word, mode="keyword")["hits"])

        assert finds("quartz")
        assert not finds("granite")
        configure(connection, "index_sources", ["files", "tools"])
        eventually(lambda: finds("granite") and not finds("quartz"), "tools are indexed instead of messages")
        connection.call("upsertMessage", message=message("m2", text="basalt"))
        assert not finds("basalt")
        configure(connection, "index_sources", None)
        eventually(lambda: finds("basalt") and not finds("granite"), "messages are indexed instead of tools")


def test_embedder_none_keeps_the_vectors_until_it_is_switched_on_again(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        connection.call("upsertMessage", message=message("m1", text="quartz"))
        settled(connection)
        assert configure(connection, "embedder", "none")["notes"] == []
        configure(connection, "embedder", "static")
        assert connection.call("index.status")["vectors"] == "ready"
        assert connection.call("job.list") == []


def test_config_works_without_a_daemon(home: Path) -> None:
    down = DaemonProcess(home)
    assert ctl(down, "config", "get", "chunk_tokens").out == "400\n"
    assert ctl(down, "config", "set", "chunk_tokens", "200").out == "chunk_tokens = 200 (file)\n"
    assert ctl(down, "config", "get", "chunk_tokens", "--json").json["origin"] == "file"
    assert ctl(down, "config", "unset", "chunk_tokens").code == 0
    assert ctl(down, "config", "get", "chunk_tokens").out == "400\n"
    unknown = ctl(down, "config", "get", "chunk_token")
    assert (unknown.code, "did you mean chunk_tokens" in unknown.err) == (1, True)
    assert not down.database.exists()


def test_config_set_takes_lists_and_checks_them(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    commas = f"{tmp_path}, ~"
    assert ctl(shared_daemon, "config", "set", "watch_extra", commas).code == 0
    assert ctl(shared_daemon, "config", "get", "watch_extra", "--json").json["value"] == [str(tmp_path), "~"]
    assert ctl(shared_daemon, "config", "set", "watch_extra", f'["{tmp_path}"]').code == 0
    assert ctl(shared_daemon, "config", "get", "watch_extra", "--json").json["value"] == [str(tmp_path)]
    for key, value, named in [
        ("watch_extra", "notes", "begin with / or ~"),
        ("watch_extra", f"{tmp_path}/none", "does not exist"),
        ("index_sources", "files,everything", "one of files, sessions, tools"),
    ]:
        refused = ctl(shared_daemon, "config", "set", key, value)
        assert (refused.code, named in refused.err) == (1, True), refused.err
    assert ctl(shared_daemon, "config", "unset", "watch_extra").code == 0


@pytest.mark.parametrize("text", ['log_level = "info"\nfoo = [1,\n', 'log_level = "info"\nlog_level = "x"\n'])
def test_broken_settings_file_is_an_error_with_line_and_column(home: Path, text: str) -> None:
    path = home / "clankers.toml"
    with running_daemon(home) as daemon:
        path.write_text(text)
        running = ctl(daemon, "config", "set", "query_rows", "5")
        assert path.read_text() == text
    down = ctl(DaemonProcess(home), "config", "show")
    for ran in (running, down):
        assert ran.code == 1
        assert f"{path}, line 2, column " in ran.err
        assert "internal" not in ran.err
