"""Deleted text is gone from the files: its row at once, its words after `db vacuum`."""

from helpers.daemon import DaemonProcess
from helpers.store import message
from helpers.waiting import eventually


def files_with(daemon: DaemonProcess, text: str) -> list[str]:
    """The files of the database that hold this text, as text or as a word of the full-text index."""
    wanted = text.lower().encode()
    # Without the second name of the WAL, which each checkpoint changes.
    files = [path for path in sorted(daemon.data.glob("clankers.db*")) if ".wal-" not in path.name]
    return [path.name for path in files if wanted in path.read_bytes().lower()]


def test_deleted_text_is_in_no_file_after_a_vacuum(fresh_daemon: DaemonProcess) -> None:
    secrets = [f"qxzzj{number:04}wkvyq" for number in range(200)]
    # FTS5 leaves out what a word shares with the word before it.
    tails = [secret[5:] for secret in secrets]
    with fresh_daemon.connect() as connection:
        for at in range(0, len(secrets), 50):
            texts = {f"m-{n}": f"The word is {secrets[n]}. " + "filler text " * 200 for n in range(at, at + 50)}
            events = [{"message": message(name, session="doomed", text=text)} for name, text in texts.items()]
            connection.call("events.batch", events=events)
            connection.call("events.batch", events=[{"message": message(f"kept-{at}", session="kept")}])
        connection.call("memory.add", content=f"Remember {secrets[0]} for good")
        eventually(lambda: connection.call("index.status")["backlog"] == 0, "every text is chunked")
        assert files_with(fresh_daemon, tails[7])
        connection.call("session.delete", id="doomed")
        connection.call("memory.bulkDelete", scopes=["*"], minSalience=0, purge=True)
        job = connection.call("db.vacuum")["jobId"]
        eventually(lambda: connection.call("job.status", id=job)["state"] == "done", "the vacuum is done")
        found = {tail: files_with(fresh_daemon, tail) for tail in tails}
        assert {tail: names for tail, names in found.items() if names} == {}
        assert files_with(fresh_daemon, "kept-0")
        assert connection.call("health")["warnings"] == []
