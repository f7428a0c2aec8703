"""Pauses of capture, as a hook reads them while the daemon is away. Imports only the standard library."""

import json
import os
from typing import Any

MAX_FILE_BYTES = 1024 * 1024
FOLDER_KEYS = ("cwd", "projectPath", "project_path", "directory", "worktree")
"""Fields in which events of harnesses name the folder of their session."""


def is_paused(path: str, event: bytes, now: int) -> bool:
    """Return whether capture is paused now, everywhere or in the project of this event."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        pauses = json.loads(os.read(descriptor, MAX_FILE_BYTES))
    finally:
        os.close(descriptor)
    active = [pause for pause in pauses if pause["since"] <= now and (pause["until"] is None or now < pause["until"])]
    if any(pause["project"] is None for pause in active):
        return True
    if not active:
        return False
    folders = _folders(json.loads(event))
    return any(f"{folder}/".startswith(f"{pause['project'].rstrip('/')}/") for pause in active for folder in folders)


def _folders(event: Any) -> list[str]:
    """Return the folders that an event names, at its top or one level below."""
    if not isinstance(event, dict):
        return []
    objects = [event, *(value for value in event.values() if isinstance(value, dict))]
    return [each[key] for each in objects for key in FOLDER_KEYS if isinstance(each.get(key), str)]
