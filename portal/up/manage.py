"""`python -m portal.up.manage VAR COMMAND …`: run manage.py beside a running `make up`.

The command sees the stores and the secret of the installation in VAR.
"""

import os
import sys
from pathlib import Path

from portal.up import Refused
from portal.up.folder import Folder
from portal.up.house import House

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"


def main(var: str, *command: str) -> None:
    """Become manage.py. Raises Refused where VAR holds no installation."""
    folder = Folder(Path(var))
    if not (folder.path / "secret_key").exists():
        raise Refused(f"{folder.path} holds no installation: run make up first.")
    environment = House(
        folder, port=int(os.environ.get("PORT", "8000")), environment=os.environ
    ).settings()
    os.execve(sys.executable, [sys.executable, str(MANAGE), *command], environment)  # noqa: S606


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Refused as refusal:
        sys.exit(str(refusal))
