"""Every setting, with its unit and its reason. The environment is read here and nowhere else."""

from datetime import timedelta
from pathlib import Path

import environ

from config import connections, look, observe

env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent.parent

DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env("SECRET_KEY", default="insecure-only-for-development" if DEBUG else environ.Env.NOTSET)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
RELEASE = env("RELEASE", default="development")
ENVIRONMENT = env("ENVIRONMENT", default="development")

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
USE_TZ = True
TIME_ZONE = "UTC"  # Django's own default is America/Chicago, and Celery's log would show it
LANGUAGE_CODE = "en-us"
USE_I18N = False
FORMAT_MODULE_PATH = ["config.formats"]
STATIC_URL = "static/"
STATIC_ROOT = env("STATIC_ROOT", default=None)  # for collectstatic; without it whitenoise asks the apps
WHITENOISE_USE_FINDERS = STATIC_ROOT is None
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SILENCED_SYSTEM_CHECKS = [
    "security.W003",  # config.pages.Csrf is Django's, for every page but the API's, which has no cookies
    # Whether other names of the domain are HTTPS only, and for ever, is not this service's to say.
    "security.W005",
    "security.W021",
]

# --- Production: HTTPS=true, behind a proxy that ends TLS, sets X-Forwarded-Proto, and drops a client's -----
HTTPS = env.bool("HTTPS", default=False)
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_SSL_REDIRECT = HTTPS
SECURE_REDIRECT_EXEMPT = [r"^health/"]  # who watches the process asks it directly
SECURE_HSTS_SECONDS = env.int("HSTS_SECONDS", default=31_536_000) if HTTPS else 0
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS

INSTALLED_APPS = [
    "unfold",  # before the admin, whose templates it replaces
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_spectacular",
    "operations",
    "tasks",
    "inventory",
    "payments",
    *env.list("EXTRA_APPS", default=[]),  # packages with more jobs: each one's jobs.py is read at start
]

MIDDLEWARE = [
    "operations.requests.RequestID",
    "operations.throttles.QuotaHeaders",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "config.pages.Session",
    "django.middleware.common.CommonMiddleware",
    "config.pages.Csrf",
    "config.pages.Authentication",
    "config.pages.Messages",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# --- PostgreSQL ---------------------------------------------------------------------------------------------
# A statement that waits longer than this for a row gives up: a client hears 409 after it, a worker tries
# again.
LOCK_TIMEOUT_MS = env.int("LOCK_TIMEOUT_MS", default=2_000)
STATEMENT_TIMEOUT_MS = env.int("STATEMENT_TIMEOUT_MS", default=30_000)
# Nothing of ours waits for the outside inside a transaction, so one that idles this long is a stopped
# process.
IDLE_IN_TRANSACTION_TIMEOUT_MS = env.int("IDLE_IN_TRANSACTION_TIMEOUT_MS", default=15_000)
DATABASE_URL = env("DATABASE_URL", default="postgresql:///teguh")
DATABASES = {
    "default": {
        **connections.database(
            DATABASE_URL,
            options={
                "connect_timeout": 5,  # seconds
                # Django's None forbids prepared statements. Ours ask for them, the ORM's never get so far.
                "prepare_threshold": 1_000_000,
                "options": f"-c lock_timeout={LOCK_TIMEOUT_MS} -c statement_timeout={STATEMENT_TIMEOUT_MS}"
                f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_TIMEOUT_MS}"
                # To compile a statement takes longer than any of ours runs.
                " -c jit=off",
            },
        ),
        "CONN_MAX_AGE": None,  # a connection costs three to five times the CPU of a request
        "ATOMIC_REQUESTS": False,  # accept owns its transaction, and one can see it
    }
}

# --- Redis or Valkey: broker, cache, locks and quotas share no database. RabbitMQ may be the broker ---------
REDIS_URL = env("REDIS_URL", default="redis://127.0.0.1:6379")
BROKER_URL = env("BROKER_URL", default=connections.broker(connections.redis_database(REDIS_URL, 0)))
CACHE_URL = env("CACHE_URL", default=connections.redis_database(REDIS_URL, 1))
LOCK_URL = env("LOCK_URL", default=connections.redis_database(REDIS_URL, 2))
QUOTA_URL = env("QUOTA_URL", default=connections.redis_database(REDIS_URL, 3))
KEY_PREFIX = env("KEY_PREFIX", default="teguh")  # lets several installations share one server
ON_RABBITMQ = connections.speaks_amqp(BROKER_URL)
QUEUE_PREFIX = f"{KEY_PREFIX}:" if ON_RABBITMQ else ""  # on Redis, kombu puts it before every key
# A queue that is there already must have been declared with the same ones. The limit is RabbitMQ 4's default,
# which older ones lack: a message that came back so often is dropped, and published anew by the relay.
QUEUE_ARGUMENTS: dict[str, str | int] = (
    {"x-queue-type": "quorum", "x-delivery-limit": 20} if ON_RABBITMQ else {}
)
REDIS_TIMEOUT_SECONDS = env.float("REDIS_TIMEOUT_SECONDS", default=0.5)

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": CACHE_URL,
        "KEY_PREFIX": KEY_PREFIX,
        "OPTIONS": {
            "SERIALIZER": "django_redis.serializers.json.JSONSerializer",  # pickle would run what it reads
            "SOCKET_TIMEOUT": REDIS_TIMEOUT_SECONDS,
            "SOCKET_CONNECT_TIMEOUT": REDIS_TIMEOUT_SECONDS,
            "CONNECTION_POOL_CLASS": "operations.cache_connection.Pool",
        },
    }
}

# --- Leases, beats, relay: seconds --------------------------------------------------------------------------
LEASE_SECONDS = env.float("LEASE_SECONDS", default=30.0)
HEARTBEAT_SECONDS = env.float(
    "HEARTBEAT_SECONDS", default=LEASE_SECONDS / 4
)  # a lease outlives three lost beats
LOCK_TTL_SECONDS = env.float("LOCK_TTL_SECONDS", default=LEASE_SECONDS)  # never longer than the lease
LOCK_POLL_SECONDS = env.float("LOCK_POLL_SECONDS", default=LEASE_SECONDS / 2)  # if the wake-up is lost
# By how much the time behind a dead letter may put a deadline off: long enough for a person who was away for
# a weekend to see to it, and an end for those for whom nobody does.
MAX_DEADLINE_EXTENSION = timedelta(
    seconds=env.float("MAX_DEADLINE_EXTENSION_SECONDS", default=7 * 24 * 3_600.0)
)
MAX_FOLLOW_UPS = 8  # in a row: operation, its follow-up, the follow-up's, and so on
MAX_INTERRUPTIONS = 10  # how often a run may be handed back without costing an attempt
# How much later than a call's own timeout the other side may still be at work on it: before that, its "I know
# nothing of that" proves nothing.
ANSWER_MARGIN_SECONDS = env.float("ANSWER_MARGIN_SECONDS", default=5.0)
# How many runs of one operation may only ask what became of an effect. The end of its key's window comes
# first, a day at most, even if a reconciler has it asked each minute: 1,440.
MAX_LOOKUPS = 2_000
MAX_LOOKUPS_BEFORE_A_LOSS = (
    200  # after so many, one that loses its worker is a person's: it may be what kills it
)
LONGEST_LOOKUP_PAUSE_SECONDS = env.float("LONGEST_LOOKUP_PAUSE_SECONDS", default=600.0)  # between two of them
# What one person may settle alone, where nobody knows whether it was paid; in the currency's minor unit.
SETTLE_ALONE_UP_TO_MINOR = env.int("SETTLE_ALONE_UP_TO_MINOR", default=50_000)
# From a TERM to the end of a worker; what a run can't finish is handed back this margin before.
GRACE_SECONDS = env.float("GRACE_SECONDS", default=25.0)
GRACE_MARGIN_SECONDS = env.float("GRACE_MARGIN_SECONDS", default=5.0)
# A worker that could take a message that waits, and takes none for so long, ends and is started again. Longer
# than Celery needs to find a dead connection (51 s) or to come back to a broker (32 s); 0: never.
STUCK_AFTER_SECONDS = env.float("STUCK_AFTER_SECONDS", default=60.0)
RELAY_PERIOD_SECONDS = env.float("RELAY_PERIOD_SECONDS", default=2.0)
NODE_PERIOD_SECONDS = env.float("NODE_PERIOD_SECONDS", default=5.0)  # how often a process says that it lives
NODE_SILENCE_SECONDS = 3 * NODE_PERIOD_SECONDS  # a worker that has missed so many reports is not live
# A job that no live worker knows is judged once a worker has been live for so long: as long as a deploy takes
# to start the first worker of the new code. Its operations are then kept for the patience, and buried.
UNKNOWN_TYPE_GRACE_SECONDS = env.float("UNKNOWN_TYPE_GRACE_SECONDS", default=60.0)
UNKNOWN_TYPE_PATIENCE_SECONDS = env.float("UNKNOWN_TYPE_PATIENCE_SECONDS", default=1_800.0)
READY_PATIENCE_SECONDS = env.float(
    "READY_PATIENCE_SECONDS", default=60.0
)  # a backlog without progress is not ready
BAD_MESSAGE_DAYS = env.int("BAD_MESSAGE_DAYS", default=30)  # how long evidence of unreadable ones is kept
OPERATION_DAYS = env.int("OPERATION_DAYS", default=30)  # how long what is done is kept
RELAY_BATCH = env.int("RELAY_BATCH", default=200)  # rows a duty moves in one transaction
# A due row whose message is younger than this is believed to be on its way.
REPUBLISH_AFTER_SECONDS = env.float("REPUBLISH_AFTER_SECONDS", default=10.0)
# How often a canary is sent through every queue, and not before the last has come through; 0: never.
CANARY_PERIOD_SECONDS = env.float("CANARY_PERIOD_SECONDS", default=60.0)
# A publish may take this long; after a failure the process leaves the broker alone, and the relay publishes.
# With so many messages of a job in the broker, what is accepted is not published, and workers that are behind
# take it by the handful.
PLENTY_OF_MESSAGES = env.int("PLENTY_OF_MESSAGES", default=10)
PUBLISH_TIMEOUT_SECONDS = env.float("PUBLISH_TIMEOUT_SECONDS", default=0.4)
PUBLISH_PAUSE_SECONDS = env.float("PUBLISH_PAUSE_SECONDS", default=5.0)

# --- Breakers and holds: the same for every dependency ------------------------------------------------------
# A breaker opens when so many calls have failed within a window, and they are so many of all.
BREAKER_FAILURES = env.int("BREAKER_FAILURES", default=5)
BREAKER_PERCENT = env.float("BREAKER_PERCENT", default=50.0)
BREAKER_WINDOW_SECONDS = env.float("BREAKER_WINDOW_SECONDS", default=30.0)
# The first probe comes after this pause, which doubles with each that fails, up to the longest.
BREAKER_FIRST_PROBE_SECONDS = env.float("BREAKER_FIRST_PROBE_SECONDS", default=5.0)
BREAKER_LONGEST_PROBE_SECONDS = env.float("BREAKER_LONGEST_PROBE_SECONDS", default=120.0)
BREAKER_PROBES = env.int("BREAKER_PROBES", default=3)  # so many must succeed in a row
# How fast what has waited is let go, operations a second: what a service that has just come back can bear.
BREAKER_RELEASE_PER_SECOND = env.float("BREAKER_RELEASE_PER_SECOND", default=20.0)
# Of a window's calls, this share may be repeated, and so many in any case; the others wait for the next one.
BREAKER_RETRY_SHARE = env.float("BREAKER_RETRY_SHARE", default=0.2)
BREAKER_FREE_RETRIES = env.int("BREAKER_FREE_RETRIES", default=20)

# --- Celery -------------------------------------------------------------------------------------------------
# A worker serves one group of queues; there is one queue a job. A slow job in a group of its own takes no
# fast one's slots.
WORKER_GROUPS: dict[str, list[str]] = {
    "inventory": ["inventory.sync", "inventory.grant"],
    "payments": ["payments.purchase", "payments.event", "payments.receipt"],
    "dead-letter": ["dead_letter"],
    **{
        group: env.list(f"WORKER_GROUP_{group.upper()}")
        for group in env.list("EXTRA_WORKER_GROUPS", default=[])
    },
}
WORKER_GROUP = env("WORKER_GROUP", default="")  # empty: all of them, for a small machine
WORKER_SLOTS = env.int("WORKER_SLOTS", default=2)

CELERY_BROKER_URL = BROKER_URL
CELERY_IMPORTS = [
    *("tasks.base", "tasks.dead_letter", "tasks.canary"),
    *("tasks.node", "tasks.drain", "tasks.loss", "tasks.stuck"),
]
CELERY_TASK_QUEUES: dict[str, dict[str, dict[str, str | int]]] = {
    QUEUE_PREFIX + queue: {"queue_arguments": QUEUE_ARGUMENTS} if ON_RABBITMQ else {}
    for group, queues in WORKER_GROUPS.items()
    if WORKER_GROUP in ("", group)
    for queue in queues
}
CELERY_TASK_DEFAULT_EXCHANGE = (
    f"{QUEUE_PREFIX}celery"  # a worker binds its queues to it; nothing is sent there
)
CELERY_CONTROL_EXCHANGE = f"{QUEUE_PREFIX}celery"
CELERY_EVENT_EXCHANGE = f"{QUEUE_PREFIX}celeryev"
# An exclusive queue is its owner's until RabbitMQ has missed it: a worker whose machine was lost, or another
# of its name, would keep the next one from starting. Durable, since RabbitMQ gives up queues that are
# neither; ten seconds after its last reader it is gone.
CELERY_CONTROL_QUEUE_EXCLUSIVE = not ON_RABBITMQ
CELERY_CONTROL_QUEUE_DURABLE = ON_RABBITMQ
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = env.bool(
    "REDELIVER_LOST", default=True
)  # a bonus: recovery needs no redelivery
CELERY_TASK_RETRY_ON_WORKER_LOST = False  # would publish a countdown; due times live in the database
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_CONCURRENCY = WORKER_SLOTS
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_WORKER_CONSUMER = "tasks.consumer:PatientConsumer"
CELERY_WORKER_SEND_TASK_EVENTS = True  # Flower lives on them
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_MAX_TASKS_PER_CHILD = 10_000
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # a broker may stay away as long as it likes
# A worker's line that is silent for two of these is dead. By default, Celery finds out after four minutes
# (RabbitMQ) or fifty seconds (Redis).
CELERY_BROKER_HEARTBEAT = env.int("BROKER_HEARTBEAT_SECONDS", default=10)
# RabbitMQ closes a channel for reasons that pass: a queue was deleted, a message was kept for too long.
# Without this, such a worker ends.
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
# How long a worker may keep a message before the broker gives it to another: what Redis is told below, or
# RabbitMQ's consumer_timeout.
BROKER_PATIENCE_SECONDS = (
    env.int("CONSUMER_TIMEOUT_SECONDS", default=1_800)
    if ON_RABBITMQ
    else env.int("VISIBILITY_TIMEOUT_SECONDS", default=3_600)
)
REDIS_TRANSPORT_OPTIONS = {
    "visibility_timeout": BROKER_PATIENCE_SECONDS,
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    "socket_keepalive": True,
    "health_check_interval": CELERY_BROKER_HEARTBEAT,
    # Whether Redis keeps a copy of each message that a worker has taken, to deliver it again after the
    # visibility timeout. Half of a parent's work is to keep those books, and the relay needs none of them.
    "ack_emulation": env.bool("BROKER_KEEPS_TAKEN", default=False),
    "global_keyprefix": f"{KEY_PREFIX}:",
    "priority_steps": [0],  # one list a queue: the blocking read looks at every step
}
# Seconds for one answer. A worker that ends asks for several, one after the other, within its grace period.
RABBITMQ_TRANSPORT_OPTIONS = {"read_timeout": 2, "write_timeout": 2}
CELERY_BROKER_TRANSPORT_OPTIONS = RABBITMQ_TRANSPORT_OPTIONS if ON_RABBITMQ else REDIS_TRANSPORT_OPTIONS
# Read by Celery's Django fixup only under this full name. Without it every task opens a database connection.
CELERY_DB_REUSE_MAX = 1_000_000_000

# --- HTTP ---------------------------------------------------------------------------------------------------
DATA_UPLOAD_MAX_MEMORY_SIZE = 64 * 1024  # bytes of a body; more is answered with 413
# How long a process believes a token it has seen: the bound of a revocation. Zero asks the database always.
TOKEN_MEMORY_SECONDS = env.float("TOKEN_MEMORY_SECONDS", default=5.0)
# What one user may do: requests a minute (0: as many as they like), and operations that are not final.
POSTS_PER_MINUTE = env.int("POSTS_PER_MINUTE", default=600)
READS_PER_MINUTE = env.int("READS_PER_MINUTE", default=1_800)
MOST_OPEN_OPERATIONS = env.int("MOST_OPEN_OPERATIONS", default=1_000)
# When the oldest operation of a job has waited so long for a worker, no more are accepted (0: however long).
OLDEST_WAIT_SECONDS = env.float("OLDEST_WAIT_SECONDS", default=900.0)
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["operations.authentication.RememberedTokenAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_THROTTLE_CLASSES": ["operations.throttles.UserQuota"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["operations.parsers.StrictJSONParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "operations.negotiation.Negotiation",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "operations.problems.answer",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Teguh",
    "DESCRIPTION": "Send a request as often as you like: it becomes one operation, which happens once.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_AUTHENTICATION": [],
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "EXTERNAL_DOCS": {"description": "What each problem is, and what to do", "url": "/docs/problems"},
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "operations.documents.complete",
    ],
}
# Keys for what jobs redact (Fernet: 32 random bytes in URL-safe Base64). The first seals, all open. None: it
# is stored as it was sent.
PAYLOAD_KEYS = env.list("PAYLOAD_KEYS", default=[])
METRICS_TOKEN = env("METRICS_TOKEN", default="")  # empty: /metrics answers nobody

# --- Admin --------------------------------------------------------------------------------------------------
UNFOLD = look.unfold(environment=ENVIRONMENT)

# --- The payment gateway ------------------------------------------------------------------------------------
STRIPE_API_KEY = env("STRIPE_API_KEY", default="")  # empty: purchases are accepted, and wait
STRIPE_API_BASE = env("STRIPE_API_BASE", default="https://api.stripe.com")
STRIPE_HOSTS = env.list("STRIPE_HOSTS", default=["api.stripe.com"])  # nothing of a purchase is sent elsewhere
STRIPE_VERSION = "2026-10-28.endive"  # of the API: what classification.py was written against
STRIPE_CONNECT_SECONDS = env.float("STRIPE_CONNECT_SECONDS", default=3.0)
STRIPE_TIMEOUT_SECONDS = env.float("STRIPE_TIMEOUT_SECONDS", default=10.0)  # between two bytes of an answer
# Of webhooks; the second is the next one, or the last, while they are changed.
STRIPE_WEBHOOK_SECRETS = env.list("STRIPE_WEBHOOK_SECRETS", default=[])
STRIPE_WEBHOOK_TOLERANCE_SECONDS = 300  # an older signature is somebody's recording

# --- Mail: receipts. Without a server of that name they wait ------------------------------------------------
EMAIL_HOST = env("EMAIL_HOST", default="localhost")
EMAIL_PORT = env.int("EMAIL_PORT", default=25)
EMAIL_HOST_USER = env("EMAIL_HOST_USER", default="")
EMAIL_HOST_PASSWORD = env("EMAIL_HOST_PASSWORD", default="")
EMAIL_USE_TLS = env.bool("EMAIL_USE_TLS", default=False)
EMAIL_TIMEOUT = env.float("EMAIL_TIMEOUT_SECONDS", default=10.0)
DEFAULT_FROM_EMAIL = env("EMAIL_FROM", default="orders@localhost")

# --- The inventory provider ---------------------------------------------------------------------------------
PROVIDER_URL = env("PROVIDER_URL", default="http://127.0.0.1:8800")
PROVIDER_TIMEOUT_SECONDS = env.float("PROVIDER_TIMEOUT_SECONDS", default=10.0)

# --- Tests of crashes ---------------------------------------------------------------------------------------
# "name=action" pairs that operations/crashpoints.py obeys, for example "run.received=kill@2". Refused by
# the deployment check: nothing but a test sets it.
CRASHPOINTS = env.dict("CRASHPOINTS", default={})

LOGGING = observe.logging_settings(env("LOG_LEVEL", default="INFO"))
observe.start_sentry(env("SENTRY_DSN", default=""), release=RELEASE, environment=ENVIRONMENT)
