"""Codex's tools: outcomes that are told in words only, and the files in patches."""

import pytest

from clankersd.capture.harnesses.codex.tools import patched_file, read_output, tool_name

OUTCOMES = [
    ("Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code 0\nOutput:\nfine\n", (True, "fine\n", None)),
    ("Chunk ID: 1\nProcess exited with code 3\nOutput:\nExit code: 0\n", (False, "Exit code: 0\n", "exit code 3")),
    ("Process running with session ID 7\nOutput:\nso far\n", (None, "so far\n", None)),
    ("Exit code: 1\nWall time: 0 seconds\nOutput:\nno\n", (False, "no\n", "exit code 1")),
    ("Wall time: 0.0 seconds\nOutput:\nExit code: 0\nOutput:\nSuccess.\n", (True, "Success.\n", None)),
    ("apply_patch verification failed: no such file", (False, None, "apply_patch verification failed: no such file")),
    ("unsupported call: update_plan", (False, None, "unsupported call: update_plan")),
    ("Wall time: 2.2 seconds\naborted by user", (False, None, "Wall time: 2.2 seconds\naborted by user")),
    ("exec command rejected by user", (False, None, "exec command rejected by user")),
    ("Script failed\nWall time 0.0 seconds\nOutput:\nError: x", (False, None, "Error: x")),
    ('{"agent_id":"a"}', (True, '{"agent_id":"a"}', None)),
    ("", (True, None, None)),
    (None, (True, None, None)),
]


@pytest.mark.parametrize(("output", "expected"), OUTCOMES)
def test_read_output_tells_how_a_call_ended(
    output: str | None, expected: tuple[bool | None, str | None, str | None]
) -> None:
    assert read_output(output) == expected


@pytest.mark.parametrize(
    ("name", "namespace", "expected"),
    [
        ("exec_command", None, "Bash"),
        ("recall", "mcp__labmem", "mcp__labmem__recall"),
        ("spawn_agent", "multi_agent_v1", "spawn_agent"),
        ("multi_agent_v1wait_agent", None, "wait_agent"),
        ("collaborationspawn_agent", None, "spawn_agent"),
        ("exec", "functions", "exec"),
        ("read", "web", "webread"),
    ],
)
def test_tool_name_is_the_same_from_hooks_and_rollouts(name: str, namespace: str | None, expected: str) -> None:
    assert tool_name(name, namespace) == expected


def test_patched_file_is_the_first_one_of_a_patch() -> None:
    patch = "*** Begin Patch\n*** Update File: a/b.txt\n*** Move to: c.txt\n*** Add File: /d.txt\n*** End Patch"
    assert patched_file({"command": patch}, "/src") == "/src/a/b.txt"
    assert patched_file({"cmd": f"apply_patch <<'E'\n{patch}\nE"}, "/src") == "/src/a/b.txt"
    assert patched_file(patch.replace("a/b.txt", "/x"), "/src") == "/x"
    assert patched_file({"command": "echo '*** Add File: x'"}, "/src") is None
    assert patched_file(None, None) is None
