"""Export of everything durable, piece by piece, and import of the same. `transfer.py` has the records."""

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from clankers_protocol.wire import Method, Wire


class ExportStarted(Wire):
    """A running export: the job that reads the rows, and how many there are."""

    job_id: str
    rows: int


class ExportStart(Method[ExportStarted]):
    """Start an export of everything durable, as a job; `export.read` returns its text piece by piece.

    The rows are read from a snapshot: what is stored later is not in the export. The job fails if nothing is read for a
    minute. One export runs at a time.
    """

    method: ClassVar[str] = "export.start"


class ExportPiece(Wire):
    """The next piece of the file, with the number of rows in all pieces so far. The last piece has `isLast`."""

    text: str
    rows: int
    is_last: bool


class ExportRead(Method[ExportPiece]):
    """Return the next piece of an export. A piece may end inside a line."""

    method: ClassVar[str] = "export.read"
    ends_with_client: ClassVar[bool] = True
    job_id: Annotated[str, Meta(max_length=100)]


class RejectedLine(Wire):
    """A line that was not imported: its position among the lines of the request, from 0, and the reason."""

    position: int
    reason: str


class ImportedLines(Wire):
    """Counts of imported records. `unchanged` ones are stored already, or here in a newer state."""

    new: int = 0
    updated: int = 0
    unchanged: int = 0
    rejected: list[RejectedLine] = msgspec.field(default_factory=list)


class ImportLines(Method[ImportedLines]):
    """Store records of an export, each a line as text, or as the object it holds.

    Importing a record again changes nothing. Of two states of the same thing, the one that changed last stays,
    whichever is imported first. A record that cannot be stored does not affect the others. Texts are redacted and
    indexed as those of every other method.
    """

    method: ClassVar[str] = "import.lines"
    lines: Annotated[list[str | dict[str, Any]], Meta(min_length=1, max_length=1000)]
