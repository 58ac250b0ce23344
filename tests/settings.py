"""The settings of production, and the few lines that make tests fast."""

import os

os.environ.setdefault("SECRET_KEY", "only-for-tests")
os.environ.setdefault("EMAIL_URL", "memorymail://")

from portal.settings import *  # noqa: F403
from portal.settings import DATABASES

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Threads of a race test open and close their own connections.
DATABASES["default"]["OPTIONS"].pop("pool", None)
