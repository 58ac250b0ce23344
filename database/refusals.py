"""What PostgreSQL refused, and by which of our constraints."""

from django.db import IntegrityError


def violated_constraint(error: IntegrityError) -> str | None:
    """The name of the constraint that refused a write; None where the database names none."""
    diagnosis = getattr(error.__cause__, "diag", None)
    return getattr(diagnosis, "constraint_name", None)
