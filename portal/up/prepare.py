"""`python -m portal.up.prepare VAR`: make the database ready, in one Django process.

One process for all its commands, started before the database answers: most of the time of a
single `manage.py` run goes into imports. It prints MIGRATED when the tables are there, and at
the end leaves in VAR, as JSON, what the node agent needs: `simulated_node`, an environment, and
with `--join` a one-use `join_token`.
"""

import contextlib
import io
import json
import os
import sys
import time
from pathlib import Path

import django
import psycopg
from django.conf import settings
from django.core.management import CommandError, call_command

from portal.up.folder import DEMO_LOGINS, NEEDS
from portal.up.house import MIGRATED

STORE_SECONDS = 30


def main(var: Path, *, join: bool) -> None:
    django.setup()
    wait_for_database(os.environ["DATABASE_URL"], within_seconds=STORE_SECONDS)
    manage("migrate", "--verbosity", "0")
    print(MIGRATED, flush=True)  # noqa: T201 - the supervisor reads it
    demo = ("--demo-credentials", str(var / DEMO_LOGINS)) if settings.DEMO else ()
    manage("seed", *demo)
    needs = {"simulated_node": json.loads(manage("seed", "--print-simulated-node"))}
    if join:
        needs["join_token"] = manage("enroll_node", "--token-only")
    (var / NEEDS).touch(mode=0o600)
    (var / NEEDS).write_text(json.dumps(needs))


def manage(*arguments: str) -> str:
    """The last line that one run of a management command writes."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        call_command(*arguments)
    return out.getvalue().strip().rpartition("\n")[2]


def wait_for_database(url: str, *, within_seconds: float) -> None:
    """Return when the server of `url` lets us in. Raises psycopg's error when time runs out."""
    deadline = time.monotonic() + within_seconds
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), join="--join" in sys.argv[2:])
    except (CommandError, psycopg.OperationalError) as error:
        sys.exit(str(error).strip())
