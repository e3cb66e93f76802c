"""${message}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Up: on SQLite, never rebuild `contexts` in batch mode with foreign keys on."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Down again, rows kept where the older schema has a place for them."""
    ${downgrades if downgrades else "pass"}
