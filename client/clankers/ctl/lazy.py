"""Command groups whose commands are imported when they are used, so that no command pays for the others."""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from importlib import import_module
from typing import Any

import click

LazyCommands = Mapping[str, tuple[str, str]]
"""Commands by name: where each is, as `module:attribute`, and its line in the group's help."""


class _Commands(dict[str, click.Command]):
    """Commands by name, in the order in which they are declared; each is imported when it is looked up."""

    def __init__(self, lazy: LazyCommands) -> None:
        super().__init__(dict.fromkeys(lazy))  # type: ignore[arg-type]  # `__getitem__` imports what is not there yet
        self._lazy = lazy

    def __getitem__(self, name: str) -> click.Command:
        command = super().__getitem__(name)
        if command is None:
            module, _, attribute = self._lazy[name][0].partition(":")
            command = self[name] = getattr(import_module(module), attribute)
        return command

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401  # `dict.get` does not call `__getitem__`

    def values(self) -> ValuesView[click.Command]:  # type: ignore[override]  # a view that calls `__getitem__`
        return ValuesView(self)

    def items(self) -> ItemsView[str, click.Command]:  # type: ignore[override]
        return ItemsView(self)


class LazyGroup(click.Group):
    """Group that lists its commands in the order in which they are declared."""

    def __init__(self, *args: Any, lazy: LazyCommands, **options: Any) -> None:
        super().__init__(*args, **options)
        self.help_lines = {name: line for name, (_, line) in lazy.items()}
        self.commands = _Commands(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their declared lines, which takes no import."""
        rows = list(self._help_rows(ctx))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def _help_rows(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        for name in self.list_commands(ctx):
            line = self.help_lines.get(name)
            yield name, line if line is not None else self.commands[name].get_short_help_str(80)
