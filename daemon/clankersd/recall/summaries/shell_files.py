"""Files that a shell command changes, where the command says so plainly.

Known are redirections, `sed -i`, `perl -i`, `tee`, `mv`, `cp`, `rm`, `touch`, and patches: in a here-document, or in a
file that the session itself wrote. No file is read. Names with variables or wildcards, temporary files and devices are
left out, as is all that only the shell could tell.
"""

import posixpath
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise

MAX_COMMAND_CHARACTERS = 8_000
SEPARATORS = "();|&\n"
OUTPUTS = (">", ">>", "&>", ">|")
NOT_IN_PROJECTS = ("/dev/", "/proc/", "/tmp/", "/var/tmp/")  # noqa: S108  # only compared

Patches = dict[str, tuple[str, list[str]]]
"""Patch files that a session wrote, by their name: the path of the last one, and the files that it changes."""

_WORD = re.compile(r"""&>>?|[<>]+[&|]?|\n|[|&;()]+|(?:[^\s|&;()<>'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""", re.DOTALL)
"""An operator, or a word with its quotation marks."""

_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1")
_PATCHED = re.compile(r"^--- (?:a/)?([^\t\n]+)(?:\t.*)?\n\+\+\+ (?:b/)?([^\t\n]+)", re.MULTILINE)
_ONLY_SHOWS = ("--check", "--dry-run", "--stat", "--numstat", "--summary")
_NOT_PLAIN = re.compile(r"[$*?`{}\[\]!~\n]")
_PREFIX = re.compile(r"sudo$|command$|git$|\w+=")
_IN_PLACE = re.compile(r"-[a-zA-Z]*i|--in-place")
_SCRIPT_FOLLOWS = re.compile(r"-[a-zA-Z]*[ef]$")


def patched_files(patch: str) -> list[str]:
    """Return the files that a unified diff changes, in order."""
    pairs = _PATCHED.findall(patch)
    return list(dict.fromkeys(new if new != "/dev/null" else old for old, new in pairs))


def files_changed_by(command: str, patches: Patches) -> list[str]:
    """Return the files that a shell command changes, in order; relative ones to the folder where it began.

    Patch files that this command writes are added to `patches`.
    """
    lines, bodies, end = list[str](), list[str](), ""
    for line in command[:MAX_COMMAND_CHARACTERS].replace("\\\n", " ").split("\n"):
        if not end:
            lines.append(_HERE_DOCUMENT.sub(f"<<{len(bodies)}", line))
            if found := _HERE_DOCUMENT.search(line):
                end = found[2]
                bodies.append("")
        elif line.strip() == end:
            end = ""
        else:
            bodies[-1] += f"{line}\n"
    command = "\n".join(lines)
    if _WORD.sub("", command).strip():  # a quotation mark that is not closed
        return []
    files: dict[str, None] = {}
    folder, piped, simple = "", "", list[str]()
    for word in [*_WORD.findall(command), "\n"]:
        if word[0] not in SEPARATORS or word.endswith(">"):
            simple.append(word)
            continue
        if simple[:1] == ["cd"] and len(simple) == 2:
            folder = posixpath.join(folder, _unquote(simple[1]))
        document = simple[simple.index("<<") + 1] if "<<" in simple[:-1] else ""
        patched = patched_files(bodies[int(document)] if document.isdigit() else piped)
        for name in _changed_by_simple_command(simple, patches, patched):
            is_from_top = folder and name.startswith(f"{folder}/")  # as names in the patches of git are
            path = posixpath.normpath(name if is_from_top else posixpath.join(folder, name))
            if patched and path not in patched:
                patches[posixpath.basename(path)] = (path, patched)
            if not _NOT_PLAIN.search(path) and not path.startswith(NOT_IN_PROJECTS):
                files[path] = None
        piped = bodies[int(document)] if document.isdigit() and word == "|" else ""
        simple = []
    return list(files)


def _changed_by_simple_command(words: list[str], patches: Patches, patched: list[str]) -> Iterator[str]:
    """Yield the files that one program and its redirections change. `patched` are those of a patch in its input."""
    arguments: list[str] = []
    inputs: list[str] = []
    for number, word in enumerate(words):
        before = words[number - 1] if number else ""
        if before in OUTPUTS and not (number > 1 and words[number - 2] == "2"):
            yield _unquote(word)
        elif before == "<":
            inputs.append(_unquote(word))
        elif not word.startswith(("<", ">", "&>")) and not before.startswith(("<", ">", "&>")):
            arguments.append(_unquote(word))
    while arguments and _PREFIX.match(arguments[0]):
        arguments.pop(0)
    program = posixpath.basename(arguments[0]) if arguments else ""
    options = [word for word in arguments[1:] if word.startswith("-")]
    names = [word for word in arguments[1:] if word and not word.startswith("-")]
    if program in ("tee", "touch", "rm"):
        yield from names
    elif program in ("mv", "cp") and len(names) > 1:
        *sources, target = names
        is_folder = len(sources) > 1 or target.endswith("/")
        yield from [posixpath.join(target, posixpath.basename(one)) for one in sources] if is_folder else [target]
    elif program in ("apply", "am", "patch") and not any(option.startswith(_ONLY_SHOWS) for option in options):
        yield from patched
        for name in [*names, *inputs]:
            written, changed = patches.get(posixpath.basename(name), ("", []))
            if f"/{written}".endswith("/" + posixpath.normpath(name).lstrip("./")):
                yield from changed
    elif program in ("sed", "perl") and any(map(_IN_PLACE.match, options)):
        scripts = [word for before, word in pairwise(arguments) if _SCRIPT_FOLLOWS.match(before)]
        yield from [name for name in names if name not in scripts] if scripts else names[1:]


def _unquote(word: str) -> str:
    return "".join(shlex.split(word))
