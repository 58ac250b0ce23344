"""Every deployment difference is an environment variable; there are no per-environment files."""

from datetime import timedelta
from pathlib import Path

import environ

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()

DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env.str("SECRET_KEY")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
# The address people and nodes use; it stands in mails and in the command that enrols a node.
PUBLIC_URL = env.str("PUBLIC_URL", default="http://127.0.0.1:8000")
# True where `make up` runs everything on one machine for a first look.
DEMO = env.bool("DEMO", default=False)

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "allauth",
    "allauth.account",
    "django_htmx",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "rest_framework",
    "billing",
    "portal.accounts",
    "portal.catalog",
    "portal.instances",
    "scheduler",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "portal.console.ConsolePolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.accounts.middleware.MemberMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "allauth.account.middleware.AccountMiddleware",
]
ROOT_URLCONF = "portal.urls"
AUTH_USER_MODEL = "accounts.User"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.csp",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "libraries": {"formats": "portal.wallet.formats"},
        },
    }
]

# --- stores ---------------------------------------------------------------------------------
DATABASES = {"default": env.db_url("DATABASE_URL", default="postgres:///headrace")}
DATABASES["default"].setdefault("OPTIONS", {}).update(
    pool={"min_size": 1, "max_size": env.int("DATABASE_POOL_SIZE", default=20)},
    # Planned once per connection: a fifth of the server's time, and a quarter less of ours.
    server_side_binding=True,
    prepare_threshold=5,
)
REDIS_URL = env.str("REDIS_URL", default="redis://127.0.0.1:6379/0")
CACHES = {"default": {"BACKEND": "portal.cache.LossyRedisCache", "LOCATION": REDIS_URL}}

# --- people ---------------------------------------------------------------------------------
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
    )
]
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
LOGIN_REDIRECT_URL = "/"
LOGIN_URL = "account_login"
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = env.str("ACCOUNT_EMAIL_VERIFICATION", default="mandatory")
_mail = env.email_url("EMAIL_URL", default="consolemail://")
MAILERS = {"default": {"BACKEND": _mail["EMAIL_BACKEND"], "OPTIONS": {}}}
if _mail["EMAIL_HOST"]:
    MAILERS["default"]["OPTIONS"] = {
        "host": _mail["EMAIL_HOST"],
        "port": _mail["EMAIL_PORT"],
        "username": _mail["EMAIL_HOST_USER"],
        "password": _mail["EMAIL_HOST_PASSWORD"],
        "use_tls": _mail.get("EMAIL_USE_TLS", False),
        "use_ssl": _mail.get("EMAIL_USE_SSL", False),
    }
DEFAULT_FROM_EMAIL = env.str("DEFAULT_FROM_EMAIL", default="Headrace <headrace@localhost>")

# --- web ------------------------------------------------------------------------------------
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = env.path("STATIC_ROOT", default=BASE_DIR / "var" / "static")()
WHITENOISE_USE_FINDERS = True
SECURE_CSP = {
    "default-src": ["'self'"],
    "img-src": ["'self'", "data:"],
    "object-src": ["'none'"],
    "base-uri": ["'none'"],
    "frame-ancestors": ["'none'"],
    "form-action": ["'self'"],
}
# Unfold's own scripts evaluate expressions, and it writes styles; the console's path only.
CONSOLE_CSP = SECURE_CSP | {
    "script-src": ["'self'", "'unsafe-eval'"],
    "style-src": ["'self'", "'unsafe-inline'"],
}
HTTPS = PUBLIC_URL.startswith("https://")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS
SECURE_HSTS_SECONDS = env.int("SECURE_HSTS_SECONDS", default=31_536_000 if HTTPS else 0)
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "portal.accounts.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["portal.accounts.authentication.WithinScope"],
    "DEFAULT_PARSER_CLASSES": ["portal.api.parsing.BodyParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "portal.api.parsing.JsonOnly",
    "DEFAULT_PAGINATION_CLASS": "portal.api.pagination.Pages",
    "DEFAULT_THROTTLE_CLASSES": ["portal.api.throttling.Throttle"],
    "DEFAULT_SCHEMA_CLASS": "portal.api.schema.ProblemSchema",
    "DEFAULT_METADATA_CLASS": None,
    "EXCEPTION_HANDLER": "portal.api.errors.handle",
    "NUM_PROXIES": env.int("NUM_PROXIES", default=0),
    "URL_FORMAT_OVERRIDE": None,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
# Requests per user (per address, while nobody is signed in) and second, minute or hour.
API_RATES = {
    "any": env.str("API_RATE_ANY", default="1200/min"),
    "launch": env.str("API_RATE_LAUNCH", default="120/min"),
    "login": env.str("API_RATE_LOGIN", default="20/min"),
    "signup": env.str("API_RATE_SIGNUP", default="20/hour"),
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Headrace API",
    "DESCRIPTION": "Launch GPU instances, watch them and see what they cost.",
    "VERSION": "1",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_AUTHENTICATION": [],
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "ENUM_NAME_OVERRIDES": {
        "InstanceState": "portal.instances.models.State",
        "NodeState": "scheduler.models.NodeState",
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "portal.api.schema.finish",
    ],
}

# --- the operator's console ---------------------------------------------------------------
_SHADES = (50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 950)
UNFOLD = {
    "SITE_TITLE": "Headrace",
    "SITE_HEADER": "Headrace",
    "SITE_SUBHEADER": "Operator's console",
    "SITE_ICON": "portal.console.mark",
    "SITE_FAVICONS": [{"rel": "icon", "href": "portal.console.mark", "type": "image/svg+xml"}],
    "SHOW_VIEW_ON_SITE": False,
    "ENVIRONMENT": "portal.console.environment",
    "DASHBOARD_CALLBACK": "scheduler.admin.overview",
    "SIDEBAR": {"navigation": "portal.console.navigation"},
    "COLORS": {
        # Lightness, chroma and hue of OKLCH: the portal's own water and paper.
        name: {shade: f"oklch({tone})" for shade, tone in zip(_SHADES, tones, strict=True)}
        for name, tones in {
            "base": (
                *("97.8% .005 210", "95.4% .008 212", "91.5% .011 215", "85% .015 220"),
                *("70% .02 226", "54% .026 230", "44% .028 231", "35% .027 232"),
                *("27.5% .025 232", "20.5% .022 232", "16.5% .02 232"),
            ),
            "primary": (
                *("97% .014 212", "94% .03 212", "89% .055 211", "83% .08 209"),
                *("79% .095 208", "72% .1 212", "46% .092 224", "40% .085 226"),
                *("34% .07 227", "28% .055 228", "21% .04 230"),
            ),
        }.items()
    },
}

# Warnings and errors go to stderr, tracebacks of a 500 among them; who runs us keeps them.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
}

# --- Celery ---------------------------------------------------------------------------------
# kombu writes a socket's address in its own way.
CELERY_BROKER_URL = REDIS_URL.replace("unix:", "redis+socket:").replace("?db=", "?virtual_host=")
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# A killed worker's task is back in seconds; kombu's own defaults need over a minute.
CELERY_BROKER_TRANSPORT_OPTIONS = {"unacked_restore_interval": 2, "unacked_restore_throttle": 1}

# --- domain limits: the unit is in the name or in the type -----------------------------------
SCHEDULER_TICK_SECONDS = 2
SCHEDULER_CYCLE_LIMIT = 500  # queued instances that one cycle looks at
SCHEDULER_CYCLE_SPACING = timedelta(milliseconds=100)  # from one cycle's begin to a hinted one's
LEASE_DURATION = timedelta(seconds=120)
AGENT_SYNC_INTERVAL = timedelta(seconds=10)  # how often an agent reports when nothing changes
AGENT_SYNC_HOLD = timedelta(seconds=25)  # how long the server may hold a sync open
NODE_SUSPECT_AFTER = timedelta(seconds=45)
NODE_UNREACHABLE_AFTER = timedelta(seconds=120)
NODE_LOST_AFTER = timedelta(hours=24)  # a running instance on an unreachable node is given up
START_DEADLINE = timedelta(minutes=30)  # placed, but not ready: the start is given up
START_ATTEMPTS = 3
JOIN_TOKEN_LIFETIME = timedelta(minutes=15)
IDEMPOTENCY_KEY_LIFETIME = timedelta(hours=24)
TRIAL_CREDIT_MICROS = env.int("TRIAL_CREDIT_MICROS", default=10_000_000)
DEFAULT_GPU_QUOTA = env.int("DEFAULT_GPU_QUOTA", default=8)
# Without a sign of life for longer, a live cost stands still until the next one.
CONFIRMATION_TOLERANCE = timedelta(seconds=120)
LAUNCH_RUNWAY = timedelta(hours=1)  # what an account must be able to pay to launch

# The timetable: every periodic job of the system, in one place. A tick that waited longer than
# its period is stale: the next one does its work.
CELERY_BEAT_SCHEDULE = {
    task: {"task": task, "schedule": seconds, "options": {"expires": seconds}}
    for task, seconds in {
        "scheduler.run_cycle": SCHEDULER_TICK_SECONDS,
        "scheduler.publish_availability": SCHEDULER_TICK_SECONDS,
        "scheduler.expire_leases": 10,
        "billing.charge_usage": 60,
        "portal.stop_unfunded": 5,
        "portal.forget_replies": 3_600,
        "billing.issue_statements": 86_400,
        "billing.audit_ledger": 3_600,
    }.items()
}
