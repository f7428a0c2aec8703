"""Codex's tools: the same call has the same name, input and file in a hook and in the rollout."""

import re
from pathlib import PurePosixPath
from typing import Any

from clankersd.capture.harnesses.payload import readable, text

SHELL = "Bash"
SHELL_TOOLS = frozenset({"exec_command", "shell", "shell_command", "local_shell", "container.exec"})
PATCH = "apply_patch"
INNER_CALL = "exec-"
"""Prefix of the id of a call that a script makes, where the model's only tool runs scripts."""

_AGENT_TOOLS = re.compile(r"\A(?:multi_agent_v\d+|collaboration)[._]*(?=[a-z])")
_PATCHED_FILE = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.MULTILINE)
_EXIT_CODE = re.compile(r"^(?:Process exited with code|Exit code:) (-?\d+)$", re.MULTILINE)
_STILL_RUNS = re.compile(r"^Process running with session ID ", re.MULTILINE)
_FAILED = re.compile(
    r"\s*(?:apply_patch verification failed|unsupported |exec_command failed|write_stdin failed|failed to "
    r"|Script failed|unknown |(?:exec |patch |user )?(?:command )?rejected|error\b|err:)",
    re.IGNORECASE,
)
_ABORTED = re.compile(r"^aborted by user", re.MULTILINE)
MAX_PATCH_HEADER_CHARACTERS = 8_000
"""Beginning of a patch that names the first file."""

MAX_HEADER_CHARACTERS = 400
"""Beginning of an output in which Codex says how a command ended."""


def tool_name(name: str, namespace: str | None = None) -> str:
    """Return the name of a tool as it is stored. Hooks run a namespace and the name together."""
    if name in SHELL_TOOLS and namespace in (None, "functions"):
        return SHELL
    if namespace and namespace.startswith("mcp__"):
        return f"{namespace}__{name}"
    if namespace and namespace != "functions":
        name = f"{namespace}{name}"
    return _AGENT_TOOLS.sub("", name)


def tool_input(name: str, arguments: Any) -> str | None:
    """Return the input of a tool as text; of a command or a patch, as hooks report it."""
    if name == SHELL and isinstance(arguments, dict):
        command = arguments.get("cmd", arguments.get("command"))
        if isinstance(command, list):
            command = shell_script([str(each) for each in command])
        return readable({"command": command}) if isinstance(command, str) else readable(arguments)
    if name == PATCH and isinstance(arguments, str):
        return readable({"command": arguments})
    return readable(arguments)


def shell_script(command: list[str]) -> str:
    """Return the script of `bash -lc SCRIPT`, or the command and its arguments."""
    is_shell = len(command) == 3 and command[1] in ("-c", "-lc")
    return command[2] if is_shell else " ".join(command)


def patched_file(arguments: Any, cwd: str | None) -> str | None:
    """Return the first file that a patch changes, in a call of apply_patch or in a shell command."""
    patch = arguments
    if isinstance(arguments, dict):
        patch = text(arguments, "command") or text(arguments, "cmd") or text(arguments, "input")
    begin = patch.find("*** Begin Patch") if isinstance(patch, str) else -1
    if begin < 0 or not isinstance(patch, str):
        return None
    found = _PATCHED_FILE.search(patch, begin, begin + MAX_PATCH_HEADER_CHARACTERS)
    return str(PurePosixPath(cwd or "/") / found[1].rstrip()) if found else None


def read_output(output: str | None) -> tuple[bool | None, str | None, str | None]:
    """Read what a tool answered the model: whether it succeeded, its output without the header, and its error.

    None for the success of a command that still runs.
    """
    output = output or ""
    header, separator, rest = output[:MAX_HEADER_CHARACTERS].partition("Output:\n")
    if separator:
        rest = output[len(header) + len(separator) :]
    else:
        header, rest = output[:MAX_HEADER_CHARACTERS], output
    if found := _EXIT_CODE.search(header):
        return _by_exit_code(int(found[1]), rest)
    if separator and (inner := _EXIT_CODE.match(rest)):  # apply_patch through the shell has a header of its own
        return _by_exit_code(int(inner[1]), rest.partition("Output:\n")[2])
    if separator and _STILL_RUNS.search(header):
        return None, rest or None, None
    if _FAILED.match(header) or _ABORTED.search(header):
        return False, None, (rest or output).strip() or "failed"
    return True, rest or None, None


def _by_exit_code(code: int, output: str) -> tuple[bool, str | None, str | None]:
    return code == 0, output or None, None if code == 0 else f"exit code {code}"
