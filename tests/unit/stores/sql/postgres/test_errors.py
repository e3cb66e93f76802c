"""What a refusal to connect means where the driver passes on nothing but its words."""

import psycopg

from looopy.errors import StorageFull
from looopy.stores.sql.postgres.errors import Trouble, translate
from looopy.stores.sql.postgres.pool import no_connection

FULL_DISK = (
    'connection to server on socket ".s.PGSQL.5432" failed: FATAL:  could not write init file:'
    " No space left on device"
)


def test_a_server_with_a_full_disk_raises_storage_full():
    """It is there and can be reached: what helps is space."""
    trouble = no_connection(psycopg.OperationalError(FULL_DISK))
    assert isinstance(translate(trouble, "here"), StorageFull)


def test_a_full_disk_is_not_waited_for():
    """Somebody has to free space, which takes longer than looopy's patience."""
    assert not no_connection(psycopg.OperationalError(FULL_DISK)).passing
    assert not Trouble("53400", lost=True).passing
    assert Trouble(None, lost=True).passing
