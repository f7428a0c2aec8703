"""Changes to other programs' files that can be taken back, byte for byte."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from clankers_protocol.safe_writes import writable_path, write_file

Change = Callable[[dict[str, Any]], None]
"""Changes the content of a JSON file in place."""

LEDGER = "installed.json"


@dataclass
class Edits:
    """What is done for one harness, under `folder`: what was there before is kept in it until it is taken back.

    With `dry_run` nothing is written, and the steps tell what would be.
    """

    folder: Path
    dry_run: bool = False
    steps: list[dict[str, str]] = field(default_factory=list)
    _before: dict[str, str | None] = field(default_factory=dict)  # a file, and where its old content is kept
    _made: list[str] = field(default_factory=list)  # folders that were not there

    def __post_init__(self) -> None:
        with suppress(FileNotFoundError):
            ledger = json.loads((self.folder / LEDGER).read_text("utf-8"))
            self._before, self._made = ledger["before"], ledger["made"]

    @property
    def installed(self) -> bool:
        """Whether anything was done and not taken back."""
        return (self.folder / LEDGER).exists()

    def write(self, path: Path, content: bytes) -> None:
        """Put a file of our own there."""
        if _content(path) == content:
            self._say("unchanged", path)
            return
        self._say("would write" if self.dry_run else "wrote", path)
        if not self.dry_run:
            self._make_folder(path.parent)
            self._replace(path, content)

    def remember(self, path: Path) -> None:
        """Keep what a file holds now, if that is not known yet: someone else is going to change it."""
        if self.dry_run or str(path) in self._before:
            return
        content, name = _content(path), None
        if content is not None:
            name = f"{len(self._before)}-{path.name}"
            self._make_folder(self.folder / "before")
            self._replace(self.folder / "before" / name, content)
        self._before[str(path)] = name
        self.save()  # before anything else happens to it

    def change(self, path: Path, change: Change, what: str) -> None:
        """Change a JSON file, after its content is safe."""
        now = read_json_object(path)
        wanted = json.loads(json.dumps(now))
        change(wanted)
        if wanted == now:
            self._say("unchanged", path)
            return
        self.remember(path)
        self._say("would edit" if self.dry_run else "edited", path, what)
        if not self.dry_run:
            self._make_folder(path.parent)
            self._replace(path, _dumped(wanted, _content(path)))

    def take_back(self, path: Path, change: Change) -> None:
        """Undo our change of a JSON file: to the bytes it had, if nothing but ours has changed since."""
        if _content(path) is None:
            return
        wanted = read_json_object(path)
        change(wanted)
        before = self._bytes_before(path)
        same = before is not None and _json(before)
        if isinstance(same, dict):
            change(same)  # if it held what is ours already, or an empty place for it, it shall again
        if before is None and not _holds_anything(wanted) and str(path) in self._before:
            self._remove(path)
        elif before is not None and same == wanted:
            self._put_back(path, before)
        elif wanted != read_json_object(path):
            self._say(
                "would edit" if self.dry_run else "edited", path, "took out what is ours; the rest has changed since"
            )
            if not self.dry_run:
                self._replace(path, _dumped(wanted, _content(path)))

    def remove(self, path: Path) -> None:
        """Remove a file or folder of ours."""
        if path.is_dir() and not path.is_symlink():
            self._say("would remove" if self.dry_run else "removed", path)
            if not self.dry_run:
                shutil.rmtree(path)
        elif _content(path) is not None:
            self._remove(path)

    def save(self) -> None:
        """Note what was done, so that it can be taken back."""
        if not self.dry_run:
            ledger = {"before": self._before, "made": self._made}
            self._make_folder(self.folder)
            self._replace(self.folder / LEDGER, json.dumps(ledger, indent=2).encode())

    def forget(self) -> None:
        """Everything is taken back: remove what was kept for that, and the folders that were made."""
        if self.dry_run:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in sorted(self._made, key=len, reverse=True):
            with suppress(OSError):
                Path(folder).rmdir()

    def _bytes_before(self, path: Path) -> bytes | None:
        name = self._before.get(str(path))
        return _content(self.folder / "before" / name) if name else None

    def _put_back(self, path: Path, before: bytes) -> None:
        if _content(path) == before:
            return
        self._say("would restore" if self.dry_run else "restored", path, "as it was, byte for byte")
        if not self.dry_run:
            self._replace(path, before)

    def _remove(self, path: Path) -> None:
        self._say("would remove" if self.dry_run else "removed", path)
        if not self.dry_run:
            path.unlink()

    def _make_folder(self, folder: Path) -> None:
        folder = writable_path(folder)
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)
        self._made += [str(each) for each in missing if str(each) not in self._made]

    def _replace(self, path: Path, content: bytes) -> None:
        """Write a file whole or not at all; below our own folder no link is followed."""
        ours = path.is_relative_to(self.folder)
        write_file(path, content, inside=self.folder if ours else None)

    def _say(self, action: str, path: Path, detail: str = "") -> None:
        self.steps.append({"action": action, "path": str(path)} | ({"detail": detail} if detail else {}))


@contextmanager
def explain_os_errors() -> Iterator[None]:
    """A file that cannot be read or written ends the command with a sentence."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error


def nested_object(content: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    """The object under a key, made if it is missing. Anything else there ends the command."""
    found = content.setdefault(key, {})
    if not isinstance(found, dict):
        raise click.ClickException(f"{path}: {key} is not an object: mend it first. Nothing was changed.")
    return found


def remove_key(content: dict[str, Any], *keys: str) -> None:
    """Take a nested key out, and what is empty without it."""
    inner = content.get(keys[0])
    if len(keys) == 1:
        content.pop(keys[0], None)
    elif isinstance(inner, dict):
        remove_key(inner, *keys[1:])
        if not inner:
            del content[keys[0]]


def read_json_object(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing, when it is not there. Anything but an object ends the command."""
    content = _content(path)
    found = _json(content or b"")
    if not isinstance(found, dict):
        raise click.ClickException(f"{path} is not a JSON object: mend it first. Nothing was changed.")
    return found


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _json(content: bytes) -> Any:
    try:
        return json.loads(content) if content.strip() else {}
    except ValueError:
        return None


def _holds_anything(content: Any) -> bool:
    """Whether there is more than empty containers and a version."""
    if isinstance(content, dict):
        return any(_holds_anything(value) for key, value in content.items() if key != "version")
    return bool(content)


def _dumped(content: dict[str, Any], like: bytes | None) -> bytes:
    """As JSON, indented like the file was."""
    lines = (like or b"").decode(errors="replace").splitlines()
    first = next((line for line in lines[1:] if line.strip()), "  x")
    indent = first[: len(first) - len(first.lstrip())] or "  "
    try:
        return f"{json.dumps(content, indent=indent, ensure_ascii=False)}\n".encode()
    except UnicodeEncodeError:  # half a surrogate pair can only be written as an escape
        return f"{json.dumps(content, indent=indent)}\n".encode()
