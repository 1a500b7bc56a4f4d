"""`gossipq user`."""

from contextlib import nullcontext

import click
from msgspec import structs

from gossipq import permissions
from gossipq.texts import spaced
from gossipq.values import AccessChange, AccessTable, User
from gossipq.verbs import NEEDS
from gossipq_cli import access, ask, failures
from gossipq_cli.access import secret_option
from gossipq_cli.kinds import Duration
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output
from gossipq_ops.hints import nearest

ROTATED_S = 60.0  #: older tokens stay valid this long
expires_option = click.option(
    "--expires",
    "expires_s",
    type=Duration(lasting=True),
    metavar="DURATION",
    help="how long the token is valid",
)
save_option = click.option(
    "--save",
    "path",
    metavar="FILE",
    default="",
    help="write the token to this file (mode 0600), and do not show it",
)


@click.group(cls=Noun, lazy=("role", "whoami", "audit"))
def command() -> None:
    """Manage users, roles and tokens; read the audit log."""


@command.command("add")
@click.argument("user")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="may be given more than once")
@click.option(
    "--no-token", is_flag=True, help="create no token: for anonymous, or for users on whose behalf others act"
)
@expires_option
@save_option
@secret_option
@pass_choices
def add(
    choices: Choices,
    user: str,
    roles: tuple[str, ...],
    no_token: bool,
    expires_s: float | None,
    path: str,
    secret_file: str,
) -> None:
    """Add a user, and show its token: it is shown only once, and not stored.

    \b
    gossipq user add ada --role billing --expires 90d --save ada.token
    gossipq user add anonymous --role visitor --no-token
    """
    known = access.table(choices)
    if permissions.user_of(known, user) is not None:
        raise failures.Failure(
            "user_exists", f"user {user} exists", f"gossipq user rotate {user}", failures.CONFLICT
        )
    token, kept = access.made_token(expires_s)
    made = User(user, list(roles), [] if no_token else [kept])
    door = access.door(choices) if path else b""
    saving = access.saving(path, token, door) if path and not no_token else nullcontext()
    with ask.connect(choices) as mq, saving:
        known = access.change_by(mq, AccessChange(users=[made], version=known.version), secret_file)
        if not no_token:
            access.spread(known)
    _told(choices, user, b"" if no_token else token, path)


def _told(choices: Choices, user: str, token: bytes, path: str) -> None:
    from gossipq_client.values import text_of

    out = Output(choices)
    if not token or path:
        out.one({"user": user, "file": path}, f"{user}: its token is in {path}" if path else user, user)
    else:
        text = text_of(token)
        out.one({"user": user, "token": text}, text, text)
        out.say("put it into a file of mode 600, and name that by --credentials or $GOSSIPQ_CREDENTIALS")


@command.command("set")
@click.argument("user")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="may be given more than once")
@secret_option
@pass_choices
def set_roles(choices: Choices, user: str, roles: tuple[str, ...], secret_file: str) -> None:
    """Give a user these roles, and no others.

    \b
    gossipq user set ada --role billing --role audit
    """
    known = access.table(choices)
    made = structs.replace(access.user(known, user), roles=list(roles))
    access.change(choices, AccessChange(users=[made], version=known.version), secret_file)
    Output(choices).one(
        {"user": user, "roles": list(roles)}, f"{user}: {', '.join(roles) or 'no role'}", user
    )


@command.command("rotate")
@click.argument("user")
@click.option("--now", is_flag=True, help="older tokens end at once, not in a minute")
@expires_option
@save_option
@secret_option
@pass_choices
def rotate(
    choices: Choices, user: str, now: bool, expires_s: float | None, path: str, secret_file: str
) -> None:
    """Give a user a new token; older ones are valid for another minute.

    \b
    gossipq user rotate ada --save ada.token
    """
    known = access.table(choices)
    found = access.user(known, user)
    token, kept = access.made_token(expires_s)
    _, soon = access.made_token(ROTATED_S)
    old = [
        structs.replace(each, expires_ms=min(each.expires_ms or soon.expires_ms, soon.expires_ms))
        for each in found.tokens[-1:]
    ]
    made = structs.replace(found, tokens=[kept] if now else [*old, kept])
    # first, because this command's own token may be one that ends now
    door = access.door(choices) if path else b""
    saving = access.saving(path, token, door) if path else nullcontext()
    with ask.connect(choices) as mq, saving:
        known = access.change_by(mq, AccessChange(users=[made], version=known.version), secret_file)
        access.spread(known)
    _told(choices, user, token, path)
    if expires_s is None and found.tokens and found.tokens[-1].expires_ms:
        ended = spaced(access.until(found.tokens[-1].expires_ms))
        Output(choices).say(
            f"It never expires, and the one before did, at {ended}: --expires 90d gives it an end"
        )


@command.command("rm")
@click.argument("user")
@secret_option
@pass_choices
def remove(choices: Choices, user: str, secret_file: str) -> None:
    """Remove a user: its sessions end within a second.

    \b
    gossipq user rm ada
    """
    known = access.table(choices)
    access.user(known, user)
    access.change(choices, AccessChange(users_gone=[user], version=known.version), secret_file)
    Output(choices).say(f"{user} is gone")


@command.command("ls")
@pass_choices
def ls(choices: Choices) -> None:
    """List users, their roles, and when their tokens expire.

    \b
    gossipq user ls
    """
    known, out = access.table(choices), Output(choices)
    rows = [
        {
            "user": each.name,
            "roles": each.roles,
            "tokens": len(each.tokens),
            "expires": [access.until(token.expires_ms) for token in each.tokens],
        }
        for each in known.users
    ]
    expires = Column("expires", lambda each: ", ".join(map(spaced, each)))
    out.rows([Column("user"), Column("roles", ", ".join), Column("tokens"), expires], rows)
    if not known.closed:
        out.say("the cluster is open: everybody may do everything; gossipq cluster close ends that")


@command.command("test")
@click.argument("user")
@click.argument("permission", metavar="PERMISSION|VERB")
@click.argument("topic", default="")
@pass_choices
def test(choices: Choices, user: str, permission: str, topic: str) -> int:
    """Test whether a user may do that, and by which rule; exits 1 if not. Without a topic: to the cluster.

    \b
    gossipq user test ada publish orders
    gossipq user test ada PURGE_TOPIC orders
    """
    known, out = access.table(choices), Output(choices)
    asked = _permission(permission)
    if user != permissions.ANONYMOUS:
        access.user(known, user)
    found = _rule(known, user, asked, topic)
    on = f"topic {topic}" if topic else "the cluster"
    by = f"role {found[0]}: {found[1]}" if found else "no rule"
    allowed = found is not None or not known.closed
    why = by if found is not None or known.closed else "the cluster is open"
    text = f"{user} {'may' if allowed else 'may not'} {asked} on {on}: {why}"
    row = {"user": user, "permission": asked, "topic": topic, "allowed": allowed, "why": why}
    out.one(row, text, user)
    return failures.DONE if allowed else failures.FAILED


def _permission(word: str) -> str:
    """Return a permission, or the one that a protocol verb needs. Raises UsageError."""
    if word in permissions.PERMISSIONS:
        return word
    needs = {permissions.verb_of(kind): need for kind, need in NEEDS.items()}
    if word.upper() in needs:
        return needs[word.upper()].permission or permissions.ANY
    known = [*permissions.PERMISSIONS, *needs]
    raise click.UsageError(f"{word} is neither a permission nor a verb{nearest(word, known)}")


def _rule(known: AccessTable, user: str, permission: str, topic: str) -> tuple[str, str] | None:
    """Return the first role and its rule that allow it."""
    found = permissions.user_of(known, user)
    for name in found.roles if found else ():
        made = permissions.role_of(known, name)
        rule = permissions.Rights(user, made.rules if made else []).rule_for(permission, topic)
        if rule is not None:
            return name, f"{rule.topics} {', '.join(rule.permissions)}"
    return None
