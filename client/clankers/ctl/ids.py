"""Ids as lists show them: in full where there is room, else as short as the store allows."""

from clankers.ctl.command import Ctl
from clankers.ctl.output import WIDE_TERMINAL_COLUMNS, console
from clankers_protocol.id_lookup import IdKind, IdShorten

MAX_IDS_PER_REQUEST = 1000


def short_ids(ctl: Ctl, kind: IdKind, ids: list[str]) -> list[str]:
    """Shorten ids to parts that mean one thing in the whole store; `clankers-ctl show` accepts them."""
    shortened: list[str] = []
    for start in range(0, len(ids), MAX_IDS_PER_REQUEST):
        some: list[str] = ctl.call(IdShorten(kind, ids[start : start + MAX_IDS_PER_REQUEST]))
        shortened += some
    return shortened


def display_ids(ctl: Ctl, kind: IdKind, ids: list[str]) -> list[str]:
    """Return ids as lists show them: in full on a wide terminal and when piped, otherwise shortened."""
    return ids if console().width >= WIDE_TERMINAL_COLUMNS else short_ids(ctl, kind, ids)
