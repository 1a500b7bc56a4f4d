"""`gossipq user role`."""

import click
from msgspec import structs

from gossipq import permissions
from gossipq.values import AccessChange, Role, Rule
from gossipq_cli import access, failures
from gossipq_cli.access import secret_option
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output

PERMISSION = click.Choice(permissions.PERMISSIONS)


@click.group(cls=Noun)
def command() -> None:
    """Add, list, remove roles; grant and revoke permissions on topics."""


@command.command("add")
@click.argument("role")
@secret_option
@pass_choices
def add(choices: Choices, role: str, secret_file: str) -> None:
    """Add a role without permissions.

    \b
    gossipq user role add billing && gossipq user role grant billing 'invoices*' read publish
    """
    known = access.table(choices)
    if permissions.role_of(known, role) is not None:
        raise failures.Failure(
            "role_exists",
            f"role {role} exists",
            f"gossipq user role grant {role} TOPIC read",
            failures.CONFLICT,
        )
    access.change(choices, AccessChange(roles=[Role(role, [])], version=known.version), secret_file)
    Output(choices).one({"role": role}, f"{role} is there, and has no permission yet", role)


@command.command("rm")
@click.argument("role")
@secret_option
@pass_choices
def remove(choices: Choices, role: str, secret_file: str) -> None:
    """Remove a role, also from the users who have it.

    \b
    gossipq user role rm billing
    """
    known = access.table(choices)
    access.role(known, role)
    holders = [
        structs.replace(user, roles=[name for name in user.roles if name != role])
        for user in known.users
        if role in user.roles
    ]
    change = AccessChange(users=holders, roles_gone=[role], version=known.version)
    access.change(choices, change, secret_file)
    Output(choices).say(f"role {role} is gone")


@command.command("grant")
@click.argument("role")
@click.argument("topics")
@click.argument("granted", metavar="PERMISSION...", nargs=-1, required=True, type=PERMISSION)
@secret_option
@pass_choices
def grant(choices: Choices, role: str, topics: str, granted: tuple[str, ...], secret_file: str) -> None:
    """Grant a role permissions on a topic or a pattern; '*' also is the cluster as a whole.

    \b
    gossipq user role grant billing 'invoices*' read publish
    gossipq user role grant watch '*' observe
    """
    known = access.table(choices)
    found = access.role(known, role)
    before = next((rule for rule in found.rules if rule.topics == topics), Rule(topics, []))
    rule = Rule(topics, [each for each in permissions.PERMISSIONS if each in (*before.permissions, *granted)])
    _put(choices, structs.replace(found, rules=_with(found, rule)), known.version, secret_file)


@command.command("revoke")
@click.argument("role")
@click.argument("topics")
@click.argument("revoked", metavar="[PERMISSION...]", nargs=-1, type=PERMISSION)
@secret_option
@pass_choices
def revoke(choices: Choices, role: str, topics: str, revoked: tuple[str, ...], secret_file: str) -> None:
    """Revoke permissions of a role; without any named, the whole rule of that pattern.

    \b
    gossipq user role revoke billing 'invoices*' publish
    """
    known = access.table(choices)
    found = access.role(known, role)
    before = next((rule for rule in found.rules if rule.topics == topics), None)
    if before is None:
        raise failures.Failure(
            "unknown_rule",
            f"role {role} has no rule for {topics}",
            "gossipq user role ls",
            failures.NOT_FOUND,
        )
    left = Rule(topics, [each for each in before.permissions if revoked and each not in revoked])
    _put(choices, structs.replace(found, rules=_with(found, left)), known.version, secret_file)


def _with(role: Role, rule: Rule) -> list[Rule]:
    """Return the role's rules with this one replaced, or removed if it has no permissions."""
    rules = {each.topics: each for each in (*role.rules, rule)}
    return [each for each in rules.values() if each.permissions]


def _put(choices: Choices, role: Role, version: int, secret_file: str) -> None:
    access.change(choices, AccessChange(roles=[role], version=version), secret_file)
    Output(choices).one(_row(role), f"{role.name}: {_text(role.rules) or 'nothing'}", role.name)


def _row(role: Role) -> dict[str, object]:
    rules = [{"topics": rule.topics, "permissions": rule.permissions} for rule in role.rules]
    return {"role": role.name, "rules": rules}


def _text(rules: list[Rule]) -> str:
    return "; ".join(f"{rule.topics} {', '.join(rule.permissions)}" for rule in rules)


@command.command("ls")
@pass_choices
def ls(choices: Choices) -> None:
    """List roles and their rules.

    \b
    gossipq user role ls
    """
    known, out = access.table(choices), Output(choices)
    rows = [
        _row(role) | {"users": [user.name for user in known.users if role.name in user.roles]}
        for role in known.roles
    ]

    def shown(rules: list[dict[str, object]]) -> str:
        return "; ".join(f"{rule['topics']} {', '.join(map(str, rule['permissions']))}" for rule in rules)  # type: ignore[call-overload]

    out.rows([Column("role"), Column("rules", shown), Column("users", ", ".join)], rows)
    if not rows:
        out.say("there is no role; gossipq user role add NAME makes one")
