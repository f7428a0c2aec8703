"""The clankers wire protocol: framing, methods and errors. No I/O, no database.

Importing this package loads no submodule, so a hook only pays for what it uses.
"""

PROTOCOL = 1
"""Protocol number. It is raised when a change on the wire would break an existing plugin."""
