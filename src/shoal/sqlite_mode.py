"""How an SQLite database in WAL mode is opened by who only reads it."""

import os
from pathlib import Path


def reading_mode(database: Path) -> str:
    """The query of its URI.

    A reader, too, makes files beside the database, and fails where it cannot, as on a read-only mount. Where they can
    not be made and no write-ahead log is there, nobody has written since the last one closed it: it is read as it is.
    With a log it never is: what only the log holds would be missed.
    """
    is_closed = not database.with_name(f"{database.name}-wal").exists()
    return "mode=ro&immutable=1" if is_closed and not os.access(database.parent, os.W_OK) else "mode=ro"
