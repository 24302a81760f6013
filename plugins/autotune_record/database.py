"""database.py - let several processes share the tuner's SQLite database.

Upstream opens it with SQLAlchemy's defaults: a writer that meets another's lock gives up after 5 s with "database is
locked", and of two that store the same key at once one fails with "UNIQUE constraint failed". Neither says anything
about an operator. So every SQLite connection of this process waits for a minute, and an INSERT replaces.

Nothing of flag_gems is imported: SQLAlchemy calls its listeners for engines that are made later. The file's format is
left alone (a write-ahead log would be one, and does not work on network disks).
"""
WAIT_MS = 60_000


def share_databases():
    """Install both; returns an undo. Does nothing where SQLAlchemy is not installed (then nothing uses it)."""
    try:
        from sqlalchemy import event
        from sqlalchemy.engine import Engine
    except ImportError:
        return lambda: None
    event.listen(Engine, "connect", set_wait)
    event.listen(Engine, "before_cursor_execute", replace_row, retval=True)

    def undo():
        event.remove(Engine, "connect", set_wait)
        event.remove(Engine, "before_cursor_execute", replace_row)
    return undo


def set_wait(connection, _):
    """For a new connection of the driver."""
    if type(connection).__module__.startswith("sqlite3"):
        connection.execute(f"PRAGMA busy_timeout = {WAIT_MS}").close()


def replace_row(connection, _cursor, statement, parameters, _context, _many):
    """For a statement on its way to the driver."""
    if connection.dialect.name == "sqlite" and statement.startswith("INSERT INTO "):
        statement = "INSERT OR REPLACE" + statement.removeprefix("INSERT")
    return statement, parameters
