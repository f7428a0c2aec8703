"""`clankers-ctl thread`, `skill` and `schedule`."""

import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from helpers.ctl import ctl, on_a_terminal
from helpers.daemon import DaemonProcess, RawConnection
from helpers.schedules import make_due, wake
from helpers.waiting import eventually
from rich.cells import cell_len

from clankers.ctl import cli

pytestmark = pytest.mark.usefixtures("rpc")  # the shared daemon is emptied after each test

SKILL = """\
---
name: git-bisect
description: Find the commit that broke something
allowed-tools: Bash(git bisect:*), Read
metadata:
  tags: [git]
---

Name a good commit and a bad one.
"""


@pytest.fixture
def thread(shared_daemon: DaemonProcess) -> Iterator[str]:
    """A thread with two messages."""
    with shared_daemon.connect() as connection:
        made = connection.call("thread.create", chatId="support", title="Refund for order 12", metadata={"customer": 7})
        connection.call("message.store", threadId=made["id"], role="user", content="Where is my parcel \x1b[31mnow?")
        connection.call("message.store", threadId=made["id"], role="assistant", content="It arrives on Monday.")
        yield str(made["id"])


@pytest.fixture
def folder(home: Path) -> Path:
    """A folder of skills: a good one with other files, one that is broken, and something else."""
    skills = home / "skills"
    good = skills / "git-bisect"
    (good / "scripts").mkdir(parents=True)
    (good / "SKILL.md").write_text(SKILL)
    (good / "scripts" / "run.sh").write_text("true\n")
    (good / "logo.png").write_bytes(b"\x89PNG\xff\xfe")
    (good / ".secret").write_text("hidden")
    (good / "passwd").symlink_to("/etc/passwd")
    (skills / "broken").mkdir()
    (skills / "broken" / "SKILL.md").write_text("no front matter")
    (skills / "notes").mkdir()
    return skills


def test_thread_lists_shows_searches_changes_and_deletes(shared_daemon: DaemonProcess, thread: str) -> None:
    listed = ctl(shared_daemon, "thread", "list", "--chat", "support")
    assert "Refund for order 12" in listed.out
    assert ctl(shared_daemon, "thread", "list", "--chat", "other").err == "No threads.\n"
    shown = ctl(shared_daemon, "thread", "show", thread[:13])
    assert "It arrives on Monday." in shown.out
    assert [line.split() for line in shown.out.splitlines()[2:3]] == [["chat", "support"]]
    assert '{"customer": 7}' in shown.out
    assert "\x1b" not in shown.out
    assert ctl(shared_daemon, "thread", "show", thread, "--json").json["thread"]["metadata"] == {"customer": 7}
    found = ctl(shared_daemon, "thread", "search", "parcel", "--chat", "support", "--role", "user")
    assert "«parcel" in found.out
    assert "\x1b" not in found.out
    assert ctl(shared_daemon, "thread", "search", "parcel", "--chat", "other").err.startswith("Nothing found.")
    changed = ctl(
        shared_daemon, "thread", "update", thread, "--title", "", "--metadata", '{"settled": true}', "--json"
    ).json
    assert (changed["title"], changed["metadata"]) == (None, {"settled": True})
    assert "2 messages" in ctl(shared_daemon, "thread", "delete", thread, "--dry-run").out
    assert ctl(shared_daemon, "thread", "delete", thread, typed="n\n").code == 1
    assert ctl(shared_daemon, "thread", "delete", thread, "--yes").code == 0
    assert ctl(shared_daemon, "thread", "show", thread).code == 1


def test_thread_create(shared_daemon: DaemonProcess) -> None:
    made = ctl(
        shared_daemon, "thread", "create", "--chat", "room", "--id", "mine", "--metadata", '{"a": 1}', "--json"
    ).json
    assert (made["id"], made["chatId"], made["metadata"]) == ("mine", "room", {"a": 1})
    wrong = ctl(shared_daemon, "thread", "create", "--chat", "room", "--metadata", "[1]")
    assert wrong.code == 2
    assert "not a JSON object" in wrong.err


def test_skill_import_continues_after_a_bad_skill(shared_daemon: DaemonProcess, folder: Path) -> None:
    ran = ctl(shared_daemon, "skill", "import", str(folder))
    assert ran.code == 1
    assert ran.out == "created    git-bisect\n"
    assert "broken: invalid params: SKILL.md must begin with front matter" in ran.err
    assert "logo.png was skipped: it is not a text file" in ran.err
    skill = ctl(shared_daemon, "skill", "show", "git-bisect", "--json").json
    assert [file["path"] for file in skill["files"]] == ["scripts/run.sh"]
    again = ctl(shared_daemon, "skill", "import", str(folder / "git-bisect"))
    assert (again.code, again.out) == (0, "unchanged  git-bisect\n")
    assert ctl(shared_daemon, "skill", "import", str(folder / "notes")).code == 1


def test_skill_export_writes_the_folders_that_were_imported(
    shared_daemon: DaemonProcess, folder: Path, home: Path
) -> None:
    ctl(shared_daemon, "skill", "import", str(folder / "git-bisect"))
    out = home / "out"
    written = ctl(shared_daemon, "skill", "export", "--all", "--to", str(out))
    assert written.out.strip() == str(out / "git-bisect")
    assert (out / "git-bisect" / "scripts" / "run.sh").read_text() == "true\n"
    assert ctl(shared_daemon, "skill", "import", str(out)).out == "unchanged  git-bisect\n"
    (out / "git-bisect" / "SKILL.md").write_text("mine")
    refused = ctl(shared_daemon, "skill", "export", "git-bisect", "--to", str(out))
    assert refused.code == 1
    assert (out / "git-bisect" / "SKILL.md").read_text() == "mine"
    assert ctl(shared_daemon, "skill", "export", "git-bisect", "--to", str(out), "--force").code == 0
    assert "Name a good commit" in (out / "git-bisect" / "SKILL.md").read_text()
    assert ctl(shared_daemon, "skill", "export").code == 2


@pytest.mark.parametrize("planted", ["git-bisect", "git-bisect/SKILL.md", "git-bisect/scripts/run.sh"])
def test_skill_export_does_not_write_through_a_planted_link(
    shared_daemon: DaemonProcess, folder: Path, home: Path, planted: str
) -> None:
    ctl(shared_daemon, "skill", "import", str(folder / "git-bisect"))
    precious = home / "precious"
    (precious / "scripts").mkdir(parents=True)
    for name in ("SKILL.md", "scripts/run.sh"):
        (precious / name).write_text("as it was")
    out = home / "project" / ".claude" / "skills"
    (out / planted).parent.mkdir(parents=True)
    (out / planted).symlink_to(precious if planted == "git-bisect" else precious / planted.removeprefix("git-bisect/"))
    refused = ctl(shared_daemon, "skill", "export", "git-bisect", "--to", str(out), "--force")
    assert refused.code == 1
    assert "it is a link" in refused.err
    assert {path.read_text() for path in precious.rglob("*") if path.is_file()} == {"as it was"}
    assert not [path for path in (out / "git-bisect").rglob("*") if path.is_file() and path.read_text() != "as it was"]


def test_skill_export_refuses_to_write_two_skills_to_one_folder(
    shared_daemon: DaemonProcess, rpc: RawConnection, home: Path
) -> None:
    for name in ("bread", "Bread!"):
        rpc.call("skill.create", name=name, description="d")
    refused = ctl(shared_daemon, "skill", "export", "--all", "--to", str(home / "out"))
    assert refused.code == 1
    assert "Two skills would be written to the folder bread" in refused.err
    assert not (home / "out").exists()


def test_skill_lists_searches_and_deletes(shared_daemon: DaemonProcess, folder: Path) -> None:
    ctl(shared_daemon, "skill", "import", str(folder / "git-bisect"))
    assert "git-bisect" in ctl(shared_daemon, "skill", "list", "--tag", "git").out
    assert ctl(shared_daemon, "skill", "list", "--tag", "other").err == "No skills.\n"
    assert "git-bisect" in ctl(shared_daemon, "skill", "search", "what", "broke", "it").out
    assert "skill git-bisect" in ctl(shared_daemon, "search", "broke").out
    assert ctl(shared_daemon, "skill", "versions", "git-bisect", "--json").json[0]["version"] == 1
    assert (
        ctl(shared_daemon, "skill", "delete", "git-bisect", "--dry-run").out
        == "Would delete skill git-bisect with 1 version.\n"
    )
    assert ctl(shared_daemon, "skill", "delete", "git-bisect", "--yes").code == 0
    assert ctl(shared_daemon, "skill", "show", "git-bisect").code == 1


def test_schedule_adds_lists_changes_and_deletes(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    made = ctl(shared_daemon, "schedule", "add", "03:00 daily", "Nightly backup", "--builtin", "backup", "--json").json
    assert made["nextRun"] > time.time() * 1000
    assert "Nightly backup" in ctl(shared_daemon, "schedule", "list").out
    assert "Nightly backup" in ctl(shared_daemon, "schedule", "find", "NIGHTLY").out
    assert ctl(shared_daemon, "schedule", "find", "%").err == "No scheduled actions.\n"
    make_due(shared_daemon, made["id"])
    wake(rpc, made["id"])
    eventually(lambda: "done" in ctl(shared_daemon, "schedule", "history").out, "the backup is done")
    assert ctl(shared_daemon, "schedule", "history", made["id"], "--state", "failed").err == "No runs.\n"
    assert "off" in ctl(shared_daemon, "schedule", "disable", made["id"]).out
    assert ctl(shared_daemon, "schedule", "enable", made["id"], "--json").json["enabled"] is True
    changed = ctl(
        shared_daemon, "schedule", "update", made["id"], "--when", "04:00 weekly(sun)", "--zone", "Asia/Tokyo", "--json"
    )
    assert (changed.json["schedule"], changed.json["timezone"]) == ("04:00 weekly(sun)", "Asia/Tokyo")
    assert ctl(shared_daemon, "schedule", "update", made["id"]).code == 2
    assert ctl(shared_daemon, "schedule", "due").err == "No scheduled actions.\n"
    assert ctl(shared_daemon, "schedule", "delete").code == 2
    assert ctl(shared_daemon, "schedule", "delete", "--all", "--dry-run").out == "Would delete 1 scheduled action.\n"
    assert ctl(shared_daemon, "schedule", "delete", made["id"], "--yes").code == 0
    assert ctl(shared_daemon, "schedule", "list").err == "No scheduled actions.\n"


def test_schedule_add_points_at_the_error_in_a_schedule(shared_daemon: DaemonProcess) -> None:
    ran = ctl(shared_daemon, "schedule", "add", "09:00 weekly(blursday)", "Report")
    assert ran.code == 1
    assert "09:00 weekly(blursday)\n             ^\n" in ran.err
    assert "HH:MM monthly(1-31)" in ran.err


def test_tables_fit_a_narrow_terminal(shared_daemon: DaemonProcess, thread: str, folder: Path) -> None:
    ctl(shared_daemon, "skill", "import", str(folder / "git-bisect"))
    ctl(
        shared_daemon,
        "schedule",
        "add",
        "30 9 * * 1-5",
        "A description that is longer than the terminal is wide, by far",
    )
    for words in (["thread", "list"], ["skill", "list"], ["schedule", "list"], ["thread", "search", "parcel"]):
        lines = on_a_terminal(shared_daemon, *words, COLUMNS="60", NO_COLOR="1").splitlines()
        assert len(lines) >= 2
        assert max(cell_len(click.unstyle(line)) for line in lines) <= 60, words


@pytest.mark.parametrize("group", ["thread", "skill", "schedule"])
def test_every_command_has_help_with_examples(group: str) -> None:
    found = cli.commands[group]
    assert isinstance(found, click.Group)
    for command in (found, *found.commands.values()):
        assert command.help
        assert f"clankers-ctl {group}" in command.help
        for option in (each for each in command.params if isinstance(each, click.Option)):
            assert option.help, f"{command.name} {option.opts[0]}"
