"""Settings. The address of the broker and the database come from the environment."""

import os

SECRET_KEY = "of a test"
USE_TZ = True
INSTALLED_APPS = ["gossipq_django"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SHOP_DATABASE"],
        "TEST": {"NAME": os.environ["SHOP_DATABASE"]},
    }
}
SERVER = {"SERVER": os.environ["GOSSIPQ_SERVER"]}
BACKEND = "gossipq_django.backend.TasksBackend"
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": SERVER},
    "patient": {"BACKEND": BACKEND, "QUEUES": ["patient"], "OPTIONS": {**SERVER, "ATTEMPTS_MAX": 2}},
    "outbox": {"BACKEND": BACKEND, "QUEUES": ["orders"], "OPTIONS": {**SERVER, "OUTBOX": "default"}},
}
