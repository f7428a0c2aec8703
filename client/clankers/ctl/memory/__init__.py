"""`clankers-ctl memory`: list, search, change, export and import memories."""

import click

from clankers.ctl.lazy import LazyGroup

COMMANDS = {
    "add": ("clankers.ctl.memory.change:add", "Add a memory."),
    "list": ("clankers.ctl.memory.browse:list_", "List memories, newest first."),
    "search": ("clankers.ctl.memory.browse:search", "Search memories by keyword and meaning."),
    "show": ("clankers.ctl.memory.browse:show", "Show all fields of a memory in any state."),
    "edit": ("clankers.ctl.memory.edit:edit", "Edit a memory in $VISUAL or $EDITOR."),
    "forget": ("clankers.ctl.memory.change:forget", "Forget memories by id, or all that match the filters."),
    "restore": ("clankers.ctl.memory.change:restore", "Restore forgotten, archived or superseded memories."),
    "pin": ("clankers.ctl.memory.change:pin", "Pin memories, so that they never fade."),
    "unpin": ("clankers.ctl.memory.change:unpin", "Unpin memories, so that they fade again."),
    "reinforce": (
        "clankers.ctl.memory.strength:reinforce",
        "Reinforce memories: raise their salience, so that they fade later.",
    ),
    "deemphasize": (
        "clankers.ctl.memory.strength:deemphasize",
        "Lower the salience of memories, so that they are recalled less.",
    ),
    "promote": (
        "clankers.ctl.memory.strength:promote",
        "Promote a memory to a wider tier and, with --scope, to another scope.",
    ),
    "history": ("clankers.ctl.memory.browse:history", "Show the versions of a memory and the log of its changes."),
    "compare": ("clankers.ctl.memory.compare:compare", "Compare what was known at two times."),
    "related": ("clankers.ctl.memory.browse:related", "List memories related to a memory."),
    "graph": ("clankers.ctl.memory.graph:graph", "Show the graph around a memory or an entity."),
    "context": (
        "clankers.ctl.memory.browse:context",
        "Print the memories that an agent is given, exactly as it is given them.",
    ),
    "extract": ("clankers.ctl.memory.change:extract", "Extract memories from a captured session."),
    "summarize": (
        "clankers.ctl.memory.strength:summarize",
        "Summarise a session with the configured chat model, and store the summary.",
    ),
    "maintain": ("clankers.ctl.memory.change:maintain", "Run memory maintenance now."),
    "stats": ("clankers.ctl.memory.browse:stats", "Count memories by state, sector, tier, category and scope."),
    "export": ("clankers.ctl.memory.transfer:export", "Export all memories to a file."),
    "import": ("clankers.ctl.memory.transfer:import_", "Import memories from a file."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def memory() -> None:
    """List, search, add, edit and forget memories.

    All scopes are included unless --scope or --project is given. An id can be shortened to its first or last 8
    characters, or more if that is ambiguous.

    \b
    Examples:
      clankers-ctl memory add "We deploy on Tuesdays" --project . --category decision
      clankers-ctl memory search when do we deploy
      clankers-ctl memory list --sector procedural --sort salience
      clankers-ctl memory edit 0199c5a2-1b3c
      clankers-ctl memory forget 0199c5a2-1b3c
    """
