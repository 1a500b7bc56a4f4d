"""Configuration of gunicorn for `-k gevent --preload`: patches before the application is imported."""

from gevent import monkey

monkey.patch_all()
