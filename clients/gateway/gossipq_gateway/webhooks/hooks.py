"""The file of webhooks: which group is pushed to which URL."""

import tomllib
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from gossipq.errors import ConfigError, GossipqError
from gossipq_client.values import duration_ms
from gossipq_gateway.webhooks.signatures import secret_of

TIMEOUT_S_MAX = 300


class Hook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[webhook]]` of the file."""

    topic: str
    group: str
    url: str
    secret: str | list[str]  #: "whsec_..."; the first of several is the newest
    concurrency: int = 4  #: requests at a time
    timeout: str | float = "15s"
    allow_private: bool = False  #: the address may be of this machine or of a private network
    insecure: bool = False  #: http:// is allowed
    mode: Literal["shared", "key_ordered"] = "shared"
    route: str | list[str] | None = None
    create: bool = True  #: create the topic if it is missing
    attempts_max: int | None = None
    backoff: str | list[str] | None = None
    lease: str | None = None

    @property
    def keys(self) -> list[bytes]:
        """Raises ConfigError."""
        return [secret_of(each) for each in ([self.secret] if isinstance(self.secret, str) else self.secret)]

    @property
    def timeout_s(self) -> float:
        return duration_ms(self.timeout, "timeout", 100, TIMEOUT_S_MAX * 1_000) / 1_000

    @property
    def consume_options(self) -> dict[str, Any]:
        """Options of the consumers; the policy of the group is left alone unless it is given."""
        names = ("mode", "route", "create", "attempts_max", "backoff", "lease")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    webhook: list[Hook]


def read(path: str) -> list[Hook]:
    """Return the hooks of a TOML file. Raises ConfigError for a file that others may read, and for what is
    wrong in it."""
    try:
        if Path(path).stat().st_mode & 0o077:
            raise ConfigError(f"{path}: others may read its secrets", hint=f"chmod 600 {path}")
        hooks = msgspec.convert(tomllib.loads(Path(path).read_text("utf-8")), _File).webhook
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}", hint="docs/how-to/webhooks.md describes it") from None
    for hook in hooks:
        try:
            _check(hook)
        except GossipqError as error:
            raise ConfigError(f"{path}: webhook of {hook.topic}: {error.message}", hint=error.hint) from None
    return hooks


def _check(hook: Hook) -> None:
    if not hook.keys:
        raise ConfigError("it has no secret")
    if not 1 <= hook.concurrency <= 1_000:
        raise ConfigError(f"concurrency = {hook.concurrency}", hint="1 to 1000")
    _ = hook.timeout_s
    try:
        url = urlsplit(hook.url)
        has_port = url.port is None or url.port > 0
    except ValueError:
        url, has_port = urlsplit(""), False
    if url.scheme not in ("http", "https") or not url.hostname or not has_port or "@" in url.netloc:
        raise ConfigError(f"url = {hook.url!r}", hint="https://NAME/PATH, without a user")
    if url.scheme == "http" and not hook.insecure:
        raise ConfigError(f"url = {hook.url!r} is not encrypted", hint="https://, or insecure = true")
