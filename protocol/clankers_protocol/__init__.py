"""What clankers says on the wire: framing, methods and errors. No I/O, no database.

Importing this package loads nothing else: a hook pays for what it uses.
"""

PROTOCOL = 1
"""Raised when a change on the wire would break an existing plugin."""
