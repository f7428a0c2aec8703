"""The clankers wire protocol: framing, methods and errors. No I/O, no database.

Importing this package loads no submodule, so a hook only pays for what it uses.
"""

VERSION = "0.1.0"
"""Version of clankers; the package takes it from here. The metadata of installed packages are slow to read."""

PROTOCOL = 1
"""Protocol number. It is raised when a change on the wire would break an existing plugin."""
