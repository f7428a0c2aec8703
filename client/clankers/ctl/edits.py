"""Changes to other programs' files that can be undone, byte for byte."""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec

from clankers_protocol.safe_writes import writable_path, write_file
from clankers_protocol.wire import Wire

Change = Callable[[dict[str, Any]], None]
"""A function that changes the content of a JSON file in place."""

LEDGER = "installed.json"
PAST_TENSES = {"write": "wrote", "edit": "edited", "restore": "restored", "remove": "removed"}


class FileChange(Wire, omit_defaults=True):
    """A change that was made to a file, or would be made on a dry run."""

    action: str
    path: str
    detail: str | None = None
    text: str | None = None


class FileState(Wire):
    """A file of ours: current, outdated or missing."""

    path: str
    state: str = msgspec.field(name="is")


@dataclass
class Edits:
    """Changes made for one harness. Original contents are saved in `folder` until the changes are undone.

    With `dry_run` nothing is written, and the steps describe what would be done.
    """

    folder: Path
    dry_run: bool = False
    steps: list[FileChange] = field(default_factory=list)
    _originals: dict[str, str | None] = field(
        default_factory=dict
    )  # path of a file: name of its saved original, None if it did not exist
    _created_folders: list[str] = field(default_factory=list)
    _files: list[str] = field(default_factory=list)  # those that were written as ours
    installed_at: int | None = None
    """Time of the last change of a file, in milliseconds; None if that is not known."""

    def __post_init__(self) -> None:
        with suppress(FileNotFoundError):
            ledger = json.loads((self.folder / LEDGER).read_text("utf-8"))
            self._originals, self._created_folders = ledger["before"], ledger["made"]
            self._files = ledger.get("files", [])
            self.installed_at = ledger.get("at")

    def is_installed(self) -> bool:
        """Return True if changes were made and not undone."""
        return (self.folder / LEDGER).exists()

    def write(self, path: Path, content: bytes) -> None:
        """Write a file that belongs to us."""
        if str(path) not in self._files:
            self._files.append(str(path))
        if read_if_exists(path) == content:
            self._record("unchanged", path)
            return
        self._record("write", path)
        if not self.dry_run:
            self._make_folder(path.parent)
            self._replace(path, content)

    def save_original(self, path: Path) -> None:
        """Save the content of a file that is about to change, unless it was saved before."""
        if self.dry_run or str(path) in self._originals:
            return
        content, name = read_if_exists(path), None
        if content is not None:
            name = f"{len(self._originals)}-{path.name}"
            self._make_folder(self.folder / "before")
            self._replace(self.folder / "before" / name, content)
        self._originals[str(path)] = name
        self.save()  # before the file changes

    def original_json(self, path: Path) -> dict[str, Any]:
        """Return the content of a JSON file before it was changed; empty if it was not, or did not exist."""
        name = self._originals.get(str(path))
        found = _parse_json(read_if_exists(self.folder / "before" / name) or b"") if name else {}
        return found if isinstance(found, dict) else {}

    def edit_json(self, path: Path, change: Change, description: str) -> None:
        """Change a JSON file after saving its original."""
        current = read_json_object(path)
        wanted = json.loads(json.dumps(current))
        change(wanted)
        content = None if wanted == current else _dump_json(wanted, read_if_exists(path))
        self._edit(path, content, description)

    def revert_json(self, path: Path, undo: Change) -> None:
        """Undo our change of a JSON file: restore its original bytes, if nothing else in it has changed since."""
        current = read_if_exists(path)
        if current is None:
            return
        wanted = read_json_object(path)
        undo(wanted)
        original_name = self._originals.get(str(path))
        original = read_if_exists(self.folder / "before" / original_name) if original_name else None
        original_without_ours = None if original is None else _parse_json(original)
        if isinstance(original_without_ours, dict):
            # The original may contain our keys, or empty objects for them; restoring it brings them back.
            undo(original_without_ours)
        if original is None and not _has_content(wanted) and str(path) in self._originals:
            self._record("remove", path)
            if not self.dry_run:
                path.unlink()
        elif original is not None and original_without_ours == wanted:
            if current != original:
                self._record("restore", path, "as it was, byte for byte")
                if not self.dry_run:
                    self._replace(path, original)
        elif wanted != read_json_object(path):
            self._record("edit", path, "removed our entries; the rest has changed since the installation")
            if not self.dry_run:
                self._replace(path, _dump_json(wanted, current))

    def edit_text(self, path: Path, change: Callable[[str], str], description: str) -> None:
        """Change a text file after saving its original."""
        current = read_text(path)
        wanted = change(current)
        self._edit(path, None if wanted == current else wanted.encode(), description)

    def revert_text(self, path: Path, undo: Callable[[str], str]) -> None:
        """Undo our change of a text file: restore its original bytes, if nothing but blank lines differs from them."""
        if read_if_exists(path) is None:
            return
        current = read_text(path)
        wanted = undo(current)
        original_name = self._originals.get(str(path))
        original = read_text(self.folder / "before" / original_name) if original_name else None
        if original is None and not wanted.strip() and str(path) in self._originals:
            self._record("remove", path)
            if not self.dry_run:
                path.unlink()
        elif original is not None and undo(original).split() == wanted.split():
            if current != original:
                self._record("restore", path, "as it was, byte for byte")
                if not self.dry_run:
                    self._replace(path, original.encode())
        elif wanted != current:
            self._record("edit", path, "removed our entries; the rest has changed since the installation")
            if not self.dry_run:
                self._replace(path, wanted.encode())

    def expect_folder(self, folder: Path) -> None:
        """Note a folder that another program will make because of us: it is removed with ours, if it is empty then."""
        missing = (str(each) for each in (folder, *folder.parents) if not each.exists())
        self._created_folders += [each for each in missing if each not in self._created_folders]

    def remove_if_empty(self, *folders: Path) -> None:
        """Remove folders that another program made because of us, if nothing else is in them."""
        if not self.dry_run:
            with suppress(OSError):
                for folder in folders:
                    folder.rmdir()

    def remove(self, path: Path) -> None:
        """Remove a file or folder that belongs to us."""
        is_folder = path.is_dir() and not path.is_symlink()
        if not is_folder and read_if_exists(path) is None:
            return
        self._record("remove", path)
        if self.dry_run:
            return
        if is_folder:
            shutil.rmtree(path)
        else:
            path.unlink()

    def remove_former(self, current: Iterable[Path]) -> None:
        """Remove the files that an earlier version wrote and that are not among the current ones."""
        kept = set(map(str, current))
        for path in [each for each in self._files if each not in kept]:
            self.remove(Path(path))
            self._files.remove(path)

    def save(self) -> None:
        """Record what was done, so that it can be undone."""
        if not self.dry_run:
            if any(step.action != "unchanged" for step in self.steps):
                self.installed_at = time.time_ns() // 1_000_000
            ledger = {
                "before": self._originals,
                "made": self._created_folders,
                "files": self._files,
                "at": self.installed_at,
            }
            self._make_folder(self.folder)
            self._replace(self.folder / LEDGER, json.dumps(ledger, indent=2).encode())

    def discard(self) -> None:
        """Remove the saved originals and the folders we created, once everything is undone."""
        if self.dry_run:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in sorted(self._created_folders, key=len, reverse=True):
            with suppress(OSError):
                Path(folder).rmdir()

    def _make_folder(self, folder: Path) -> None:
        folder = writable_path(folder)
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)
        self._created_folders += [str(each) for each in missing if str(each) not in self._created_folders]

    def _edit(self, path: Path, content: bytes | None, description: str) -> None:
        """Write the new content of a file after saving its original; None leaves the file unchanged."""
        if content is None:
            self._record("unchanged", path)
            return
        self.save_original(path)
        self._record("edit", path, description)
        if not self.dry_run:
            self._make_folder(path.parent)
            self._replace(path, content)

    def _replace(self, path: Path, content: bytes) -> None:
        """Write a file atomically; inside our own folder no link is followed."""
        is_ours = path.is_relative_to(self.folder)
        write_file(path, content, inside=self.folder if is_ours else None)

    def _record(self, verb: str, path: Path, detail: str = "") -> None:
        """Add a step to the report."""
        action = verb
        if verb in PAST_TENSES:
            action = f"would {verb}" if self.dry_run else PAST_TENSES[verb]
        self.steps.append(FileChange(action, str(path), detail=detail or None))


@contextmanager
def explain_os_errors() -> Iterator[None]:
    """Turn an OSError into an error message that ends the command."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error


def nested_object(content: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    """Return the object under a key, created if missing; any other value ends the command."""
    found = content.setdefault(key, {})
    if not isinstance(found, dict):
        raise click.ClickException(f"{path}: {key} is not an object. Correct it first. Nothing was changed.")
    return found


def remove_key(content: dict[str, Any], *keys: str) -> None:
    """Remove a nested key, and the objects that are empty without it."""
    inner = content.get(keys[0])
    if len(keys) == 1:
        content.pop(keys[0], None)
    elif isinstance(inner, dict):
        remove_key(inner, *keys[1:])
        if not inner:
            del content[keys[0]]


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file; a missing file is an empty object. Anything but an object ends the command."""
    found = _parse_json(read_if_exists(path) or b"")
    if not isinstance(found, dict):
        raise click.ClickException(f"{path} is not a JSON object. Correct it first. Nothing was changed.")
    return found


def are_made(changes: dict[Path, Change]) -> bool:
    """Return True if these changes of JSON files would change nothing; False also if a file cannot be read."""
    try:
        for path, change in changes.items():
            wanted = read_json_object(path)
            change(wanted)
            if wanted != read_json_object(path):
                return False
    except (OSError, click.ClickException):
        return False
    return True


def read_if_exists(path: Path) -> bytes | None:
    """Return the content of a file, or None if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def read_text(path: Path) -> str:
    """Read a text file; a missing file is empty. One that is not UTF-8 ends the command."""
    try:
        return (read_if_exists(path) or b"").decode()
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{path} is not UTF-8. Correct it first. Nothing was changed.") from error


def file_state(path: Path, expected: bytes) -> FileState:
    """Compare a file with its expected content."""
    try:
        return FileState(str(path), "current" if path.read_bytes() == expected else "outdated")
    except OSError:
        return FileState(str(path), "missing")


def _parse_json(content: bytes) -> Any:
    try:
        return json.loads(content) if content.strip() else {}
    except ValueError:
        return None


def _has_content(content: Any) -> bool:
    """Return True if there is more than empty containers and a version."""
    if isinstance(content, dict):
        return any(_has_content(value) for key, value in content.items() if key != "version")
    return bool(content)


def _dump_json(content: dict[str, Any], current: bytes | None) -> bytes:
    """Encode as JSON with the indentation of the current file."""
    lines = (current or b"").decode(errors="replace").splitlines()
    first = next((line for line in lines[1:] if line.strip()), "  x")
    indent = first[: len(first) - len(first.lstrip())] or "  "
    end = "\n" if current is None or current.endswith(b"\n") else ""
    try:
        return f"{json.dumps(content, indent=indent, ensure_ascii=False)}{end}".encode()
    except UnicodeEncodeError:  # a lone surrogate can only be written as an escape
        return f"{json.dumps(content, indent=indent)}{end}".encode()
