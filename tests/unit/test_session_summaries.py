"""Extraction of summaries: parts, limits, and what is left out."""

import json

import pytest

from clankersd.db.migrations import migrated_in_memory
from clankersd.memories.extraction.rules import SessionMessage, ToolCall
from clankersd.recall.summaries import service
from clankersd.recall.summaries.extract import MAX_SUMMARY_CHARACTERS, SessionRows, Summary, changed_files, extract


def call(name: str, given: str = "{}", *, success: bool | None = True, path: str | None = None) -> ToolCall:
    return ToolCall(message_id=None, name=name, input=given, success=success, error="", path=path, at=0)


def command(line: str, *, success: bool) -> ToolCall:
    return call("Bash", f'{{"command": "{line}"}}', success=success)


def rows(*calls: ToolCall) -> SessionRows:
    return SessionRows("/p", ["Fix the rounding of the exporter."], [], list(calls))


def test_summary_of_a_question_and_an_answer_is_none() -> None:
    messages = [
        SessionMessage("1", "user", "Why is the sky blue at noon?", 1),
        SessionMessage("2", "assistant", "Rayleigh scattering.", 2),
    ]
    assert extract(SessionRows("/p", ["Why is the sky blue at noon?"], messages, [])) is None


@pytest.mark.parametrize(
    ("calls", "line"),
    [
        ([command("make test", success=False), command("make test", success=True)], "worked: `make test`."),
        (
            [command("uv pip sync", success=False), command("uv pip sync a.txt", success=True)],
            "worked: `uv pip sync` (as `uv pip sync a.txt`).",
        ),
        ([command("make test", success=False)], "Open: `make test` still fails."),
        ([command("make test", success=True), command("make test", success=False)], "Open: `make test` still fails."),
        (
            [call("TodoWrite", '{"todos": [{"content": "a", "status": "completed"}, {"content": "b"}]}')],
            "Open: b.",
        ),
        ([call("update_plan", '{"plan": [{"step": "write docs", "status": "pending"}]}')], "Open: write docs."),
    ],
)
def test_summary_follows_commands_and_plans(calls: list[ToolCall], line: str) -> None:
    assert str(extract(rows(*calls))).endswith(line)


def test_changed_files_are_those_of_successful_edits_and_of_every_part_of_a_patch() -> None:
    patch = r'{"command": "*** Begin Patch\n*** Update File: a.py\n@@\n*** Add File: sub/b.py\n+x\n*** End Patch"}'
    calls = [
        call("Write", path="/p/w.py"),
        call("Edit", path="/p/refused.py", success=False),
        call("Read", path="/p/read.py"),
        call("mcp__fs__write_file", path="/p/m.py"),
        call("apply_patch", patch, path="/p/a.py"),
    ]
    assert changed_files(calls) == ["/p/w.py", "/p/m.py", "/p/a.py", "/p/sub/b.py"]


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("echo hi > out.txt && echo more >> logs/all.log", ["out.txt", "logs/all.log"]),
        ("make test > /dev/null 2> errors.txt; ls 2>&1 | head", []),
        ("sed -i 's/a/b/; s#c#d#' src/a.py src/b.py", ["src/a.py", "src/b.py"]),
        ("sed -i.bak -e 's/>/</' -e s/x/y/ a.py", ["a.py"]),
        ("sed -n 1,20p a.py; sed 's/a/b/' b.py | grep -i x", []),
        ("perl -pi -e 's/a/b/' a.pl", ["a.pl"]),
        ("cd app && git mv old.py new.py && mv x.py y.py lib/", ["app/new.py", "app/lib/x.py", "app/lib/y.py"]),
        ("cat <<'EOF' > conf/a.toml\nx > y\nmv q r\nEOF\ntouch done.txt", ["conf/a.toml", "done.txt"]),
        ("git apply <<'EOF'\n--- a/src/m.py\n+++ b/src/m.py\n@@\n-x\n+y\nEOF", ["src/m.py"]),
        ("cat > fix.diff <<'EOF'\n--- a/m.py\n+++ b/m.py\nEOF\npatch -p1 < fix.diff", ["fix.diff", "m.py"]),
        ("cat <<EOF | git apply -\n--- a/m.py\n+++ b/m.py\nEOF", ["m.py"]),
        ("git apply unknown.patch; patch -p1 < other.diff; cat <<< 'mv a b'; touch c", ["c"]),
        ("generate | sudo tee -a etc/hosts.txt", ["etc/hosts.txt"]),
        ("rm -f build/*.o $TMP/x /tmp/y old.py; cp a.py b.py", ["old.py", "b.py"]),
        ("FLAG=1 python make.py 'a > b' \"c > d\"", []),
        ("echo 'not closed > x", []),
        ("git commit -m 'mv a b' && grep -rn '>' src", []),
    ],
)
def test_changed_files_of_a_shell_command_are_those_that_it_names(line: str, files: list[str]) -> None:
    assert changed_files([call("Bash", json.dumps({"command": line}))]) == files
    assert changed_files([call("Bash", json.dumps({"command": line}), success=False)]) == []


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("git apply fix.patch", ["src/a.py", "old.py"]),
        ("cd /p && git apply --index /tmp/fix.patch", ["/p/src/a.py", "/p/old.py"]),
        ("cd sub && git am ../fix.patch", ["sub/src/a.py", "sub/old.py"]),
        ("patch --forward -p1 < /tmp/fix.patch && make", ["src/a.py", "old.py"]),
        ("patch -p1 -i fix.patch", ["src/a.py", "old.py"]),
        ("git apply --check fix.patch; patch --dry-run -p1 < fix.patch; git apply --stat fix.patch", []),
        ("cat fix.patch; git apply other.patch", []),
    ],
)
def test_patch_file_that_the_session_wrote_names_what_applying_it_changed(line: str, files: list[str]) -> None:
    patch = "--- a/src/a.py\t2026-01-01\n+++ b/src/a.py\t2026-01-02\n@@ -1 +1 @@\n-x\n+y\n--- a/old.py\n+++ /dev/null\n"
    apply = call("Bash", json.dumps({"command": line}))
    written = call("Write", json.dumps({"file_path": "/tmp/fix.patch", "content": patch}), path="/tmp/fix.patch")
    assert changed_files([written, apply]) == ["/tmp/fix.patch", *files]
    here = call("Bash", json.dumps({"command": f"cat > /tmp/fix.patch <<'EOF'\n{patch}EOF"}))
    assert changed_files([here, apply]) == files
    assert changed_files([apply]) == []


@pytest.mark.parametrize("number", [1, 12, 40, 5000])
def test_summary_with_long_parts_and_many_files_keeps_its_limit(number: int) -> None:
    long = "many words " * 40
    files = [f"packages/component/src/feature_{each}/implementation_{each}.py" for each in range(number)]
    summary = Summary(long, long, [long, long], files, [long], [long, long]).render()
    assert summary is not None
    assert len(summary) <= MAX_SUMMARY_CHARACTERS
    shown = summary.split("Changed: ")[1].split("\n")[0]
    assert "implementation_0.py" in shown
    named = shown.count("implementation_")
    assert named == number or f"and {number - named} more." in shown


def test_session_that_just_ended_is_summarized_before_an_imported_history() -> None:
    db = migrated_in_memory()
    for name, at in (("a-history", 1), ("b-just-now", 3), ("c-history", 2)):
        row = {"id": name, "at": at}
        db.execute("INSERT INTO sessions (id, created_at, updated_at, ended_at) VALUES (:id, :at, :at, :at)", row)
    assert [row[0] for row in db.tuples(service._DUE)] == ["b-just-now", "c-history", "a-history"]
