"""`gossipq cluster`."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click
import msgspec

from gossipq import limits
from gossipq.endpoints import KEY_BYTES, Invitation
from gossipq.errors import Busy, GossipqError, WrongState
from gossipq.health import VOTERS
from gossipq.permissions import ADMIN, Users, digest
from gossipq.texts import iso, many, moment
from gossipq.values import AccessChange, GossipEvent, Invite, Member, User
from gossipq_cli import access, ask, failures
from gossipq_cli.access import secret_option
from gossipq_cli.kinds import Duration
from gossipq_cli.means import plans_of, secret_of
from gossipq_cli.nodes import NODE_COLUMNS, node_row, node_rows
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, counter
from gossipq_ops import actions, clusters
from gossipq_ops.hints import nearest

AGAIN_S = 0.5
FOLLOW_S = 1.0
NOTICED_S = 60.0  #: after this time the cluster knows that a node is silent
MET_MS = 10_000  #: nodes met this soon after the start may have existed before it
MET = "is there"
EVENT_TEXTS = {
    "join": "joined",
    "leave": "is gone",
    "fail": "does not answer",
    "back": "is back",
    "update": "changed its address or tags",
    "degraded": "gossip of the asked node is degraded",
    "well": "gossip of the asked node is well again",
}


@click.group(cls=Noun)
def command() -> None:
    """List, invite, drain, remove nodes; options; close; recover."""


@command.command("ls")
@pass_choices
def ls(choices: Choices) -> None:
    """List the nodes of the cluster, and what each does.

    \b
    gossipq cluster ls
    gossipq cluster ls -o json

    "away": in the roster, and does not answer. "lost": silent for so long that its copies are rebuilt
    elsewhere.
    """
    Output(choices).rows(NODE_COLUMNS, node_rows(ask.look(choices)))


@command.command("show")
@click.argument("node")
@pass_choices
def show(choices: Choices, node: str) -> None:
    """Show the shards of which a node is the leader, a follower or a learner.

    \b
    gossipq cluster show ada
    """
    view, out = ask.look(choices), Output(choices)
    found = _node(view, node)
    roles = clusters.roles_of(found.member.copy, view.copies)
    shards = {role: roles.get(role, []) for role in ("leader", "follower", "witness", "learner")}
    behind = sum(row.behind for row in view.copies if row.copy == found.member.copy)
    row = node_row(view, found) | {"shards": shards, "entries_behind": behind}
    if out.for_machines:
        out.one(row)
    else:
        texts = {role: ", ".join(map(str, where)) or "-" for role, where in shards.items()}
        out.one({key: text for key, text in row.items() if key != "shards"} | texts, name=found.member.name)


def _node(view: clusters.ClusterView, name: str) -> clusters.NodeView:
    """Return the node of this name. Raises Failure if it does not exist."""
    for node in view.nodes:
        if node.member.name == name:
            return node
    names = [member.name for member in view.members]
    raise failures.Failure(
        "unknown_node",
        f"no node is named {name}{nearest(name, names)}",
        "gossipq cluster ls",
        failures.NOT_FOUND,
    )


@command.command("drain")
@click.argument("node")
@click.option("--undo", is_flag=True, help="cancel a drain")
@click.option(
    "--wait", "wait_s", type=Duration(), metavar="SECONDS", help="wait until all of its copies are gone"
)
@secret_option
@pass_choices
def drain(choices: Choices, node: str, undo: bool, wait_s: float | None, secret_file: str) -> None:
    """Move everything away from a node: it hands over leadership, and others rebuild its copies.

    \b
    gossipq cluster drain ada --wait 10m && gossipq cluster rm ada
    gossipq cluster drain ada --undo
    """
    view, out = ask.look(choices), Output(choices)
    found, verb = _node(view, node), actions.undrain if undo else actions.drain
    with ask.connect(choices) as mq:
        outcome = verb(mq, node, lambda: secret_of(secret_file))
    if wait_s is not None and not undo:
        _await_empty(choices, found.member.copy, node, wait_s)
        outcome = outcome._replace(text=f"{node} has no copies left")
    out.did(outcome, node)
    if wait_s is None and not undo:
        out.say(f"`gossipq cluster show {node}` says what is left; then: gossipq cluster rm {node}")


def _await_empty(choices: Choices, copy: str, name: str, wait_s: float) -> None:
    """Wait until the node has no copies. A learner of shard 0 does not count: every node is one."""
    deadline = time.monotonic() + wait_s
    while True:
        view = ask.look(choices)
        left = [row for row in view.copies if row.copy == copy and row.role in VOTERS]
        if not left and not clusters.unhealthy(view):
            return
        if time.monotonic() >= deadline:
            what = many(len(left), "shard")
            raise failures.Failure(
                "timed_out",
                f"{name} is still a voter of {what}",
                f"it goes on: gossipq cluster show {name}",
                failures.TIMED_OUT,
            )
        time.sleep(AGAIN_S)


@command.command("rm")
@click.argument("node")
@click.option("--force", is_flag=True, help="also while it is still a voter of other shards than 0")
@secret_option
@pass_choices
def rm(choices: Choices, node: str, force: bool, secret_file: str) -> None:
    """Remove a node from the cluster: one that was drained, or is gone for good.

    \b
    gossipq cluster rm ada --yes

    A node that comes back after this needs an empty data directory.
    """
    view = ask.look(choices)
    found = _node(view, node)
    votes = clusters.votes(view, found.member.copy)
    if votes and not force:
        raise failures.Failure(
            "wrong_state",
            f"{node} is still a voter of {many(votes, 'shard')}",
            f"gossipq cluster drain {node} --wait 10m, and then again; or stop it; or --force",
            failures.CONFLICT,
        )
    ask.sure(choices, "removing a node", f"remove {node} from the cluster?")
    left = _taken_off(choices, node, secret_of(secret_file), silent=found.status is None)
    Output(choices).one({"node": node, "left": [member.name for member in left]}, f"{node} is removed", node)


@command.command("replace")
@click.argument("node")
@click.option("--by", metavar="NODE", help="a node that has joined to take its place")
@click.option(
    "--wait",
    "wait_s",
    type=Duration(),
    metavar="DURATION",
    default="10m",
    show_default=True,
    help="until every shard has all its copies again; 0: do not wait",
)
@secret_option
@pass_choices
def replace_node(choices: Choices, node: str, by: str | None, wait_s: float, secret_file: str) -> None:
    """Replace a node that is gone for good: others build its copies at once.

    \b
    gossipq cluster replace ada --by cat --yes

    Start the new node first: it joins with an empty directory. The one that is replaced must be silent; if it
    comes back, it needs an empty directory, too.
    """
    view = ask.look(choices)
    found, others = _node(view, node), [each for each in view.nodes if each.member.name != node]
    if found.status is not None:
        raise failures.Failure(
            "wrong_state",
            f"{node} answers",
            f"gossipq cluster drain {node} --wait 10m, and then: gossipq cluster rm {node}",
            failures.CONFLICT,
        )
    if by is not None and _node(view, by).status is None:
        raise failures.Failure(
            "wrong_state", f"{by} does not answer", "gossipq cluster ls", failures.CONFLICT
        )
    if not any(each.status is not None for each in others):
        raise failures.Failure(
            "wrong_state", "no other node is there", "gossipq cluster ls", failures.CONFLICT
        )
    ask.sure(choices, "replacing a node", f"remove {node} from the cluster for good?")
    left = _taken_off(choices, node, secret_of(secret_file), silent=True)
    if wait_s:
        ask.wait_healthy(choices, wait_s)
    text = f"{node} is replaced" if wait_s else f"{node} is removed, its copies are being built on others"
    Output(choices).one({"node": node, "left": [member.name for member in left]}, text, node)


def _taken_off(choices: Choices, node: str, secret: bytes, silent: bool) -> list[Member]:
    """Remove a node, and return the others.

    A node counts as running for some seconds after it stopped: with `silent` the command waits.
    """
    deadline = time.monotonic() + NOTICED_S
    while True:
        try:
            with ask.connect(choices) as mq:
                return mq.admin.raw.set_member(node, "gone", secret).members
        except (WrongState, Busy):
            if not silent or time.monotonic() >= deadline:
                raise
        time.sleep(AGAIN_S)


@command.command("rebalance")
@click.option("--plan", is_flag=True, help="show the moves that the cluster plans")
@click.option(
    "--copies",
    type=click.Choice(["3", "5", "7"]),
    help="as in cluster.toml (default: as many as shards have now)",
)
@click.option("--all", "everything", is_flag=True, help="also list shards that do not move")
@pass_choices
def rebalance(choices: Choices, plan: bool, copies: str | None, everything: bool) -> None:
    """Show which shards will move. The cluster moves them by itself, so there is nothing to start.

    \b
    gossipq cluster rebalance --plan
    """
    if not plan:
        raise click.UsageError(
            "the cluster moves its shards by itself: `--plan` shows the moves that it plans"
        )
    view, out = ask.look(choices), Output(choices)
    plans = plans_of(view, int(copies) if copies else 0)
    moving = [row for row in plans if row.moves]
    columns = [counter("shard"), *(Column(name) for name in ("leader", "leads_then"))]
    columns += [Column(name, ", ".join) for name in ("voters", "voters_then")]
    out.rows(columns, [row._asdict() for row in (plans if everything else moving)])
    out.say(f"{len(moving)} of {len(plans)} shards move" if moving else "every shard is where it should be")


@command.command("events")
@click.option("--follow", "-f", is_flag=True, help="also print new events")
@pass_choices
def events(choices: Choices, follow: bool) -> None:
    """Print the membership events that the asked node got by gossip: who joined, left, failed.

    \b
    gossipq cluster events --follow

    "is there": the asked node met it at its own start. "is gone": it left because it was stopped, or
    because its first process was killed. "tells something new": its endpoint changed, and other nodes
    follow it. If its copy changed, it has another data directory: see `gossipq cluster ls`.
    """
    out = Output(choices)

    def lines() -> Iterator[tuple[dict[str, Any], str]]:
        for event, met in _events(choices, follow, out):
            text = MET if met else EVENT_TEXTS.get(event.what, event.what)
            row = msgspec.structs.asdict(event) | {"time": iso(event.time_ms)}
            yield (
                row,
                "  ".join(part for part in (moment(event.time_ms), event.node, text, event.detail) if part),
            )

    for _ in out.stream(lines(), "node"):
        pass


def _events(choices: Choices, follow: bool, out: Output) -> Iterator[tuple[GossipEvent, bool]]:
    """Yield each event once, with whether the asked node met that node at its own start.

    A node keeps only the newest events, and returns them each time.
    """
    seen: set[GossipEvent] = set()
    with ask.connect(choices) as mq:
        while True:
            status = mq.admin.raw.status()
            if not seen and status.gossip == "off":
                out.say(f"{status.node} runs with --mode standalone: it has no gossip")
            met_until_ms = time.time_ns() // 1_000_000 - status.uptime_ms + MET_MS
            for event in status.events:
                if event not in seen:
                    yield event, event.what == "join" and event.time_ms < met_until_ms
            seen = set(status.events)
            if not follow:
                return
            time.sleep(FOLLOW_S)


@command.command("recover")
@click.option(
    "--data",
    default="gossipq-data",
    show_default=True,
    metavar="DIR",
    help="data directory of a stopped survivor",
)
@click.option("--force", is_flag=True, help="do it")
@pass_choices
def recover(choices: Choices, data: str, force: bool) -> int:
    """Let one stopped survivor continue alone, when the majority of its cluster is gone for good.

    \b
    gossipq cluster recover --data gossipq-data
    gossipq cluster recover --data gossipq-data --force

    Without --force it only prints which entries may be missing, and exits 1. With it the survivor
    becomes a cluster of its own with a new identity. Other nodes need empty directories to join it.
    """
    from gossipq_node import recovery

    out, rows = Output(choices), recovery.outlook(data)
    columns = [
        counter("shard"),
        Column("role"),
        counter("last"),
        Column("time_ms", lambda ms: moment(ms) if ms else "-", title="newest"),
    ]
    if not force or not out.for_machines:
        out.rows(columns, [msgspec.structs.asdict(row) for row in rows])
    for role in sorted({row.role for row in rows}):
        where = ", ".join(str(row.shard) for row in rows if row.role == role)
        out.say(f"{role}: this copy {recovery.MEANING[role]}. Shards {where}")
    out.say("What other copies confirmed after the newest entry here is missing for good.")
    if not force:
        out.say(
            f"Nothing was changed. To go on with this copy alone: gossipq cluster recover --data {data} "
            "--force"
        )
        return failures.FAILED
    manifest = recovery.recover(data)
    row = {
        "cluster": manifest.cluster_uuid,
        "copy": manifest.voter,
        "shards": [msgspec.structs.asdict(row) for row in rows],
    }
    out.one(
        row,
        f"{data} is cluster {manifest.cluster_uuid[:8]} now: start it with `gossipq node --data {data}`",
        manifest.voter,
    )
    return failures.DONE


# --- users


@command.command("close")
@click.option(
    "--save",
    "path",
    metavar="FILE",
    default="",
    help="file for your token (default: your own credentials file)",
)
@secret_option
@pass_choices
def close(choices: Choices, path: str, secret_file: str) -> None:
    """Close the cluster: from now on every request needs a user's permission.

    \b
    gossipq cluster close
    gossipq cluster close --save admin.token

    If no user may change users yet, this creates the user admin with all permissions and saves its
    token. For a node on this machine, your other commands find it.
    """
    from gossipq_client.io import contexts

    out = Output(choices)
    with ask.connect(choices) as mq:
        known = mq.admin.raw.access()
        change, token = AccessChange(closed=True, version=known.version), b""
        saving: AbstractContextManager[None] = nullcontext()
        if not Users(known).lets_in():
            token, kept = access.made_token(None)
            own = contexts.own_credentials()
            if not path and own.exists():
                raise failures.Failure(
                    "file_exists",
                    f"{own} already holds credentials of another cluster",
                    "write to another file with --save FILE",
                    failures.CONFLICT,
                )
            path = path or str(own)
            made = User(ADMIN.name, [ADMIN.name], [kept])
            change = msgspec.structs.replace(change, users=[made], roles=[ADMIN])
            saving = access.saving(path, token, mq.admin.raw.status().door)
        with saving:
            access.change_by(mq, change, secret_file)
    text = "the cluster is closed: clients without a token are refused"
    out.one({"closed": True, "credentials": path if token else ""}, text)
    if token:
        out.say(f"you are the user admin by the token in {path}")


@command.command("open")
@secret_option
@pass_choices
def open_(choices: Choices, secret_file: str) -> None:
    """Open the cluster: everybody may do everything; users and roles stay for when it is closed again.

    \b
    gossipq cluster open
    """
    access.change(choices, AccessChange(closed=False), secret_file)
    Output(choices).one({"closed": False}, "the cluster is open: everybody may do everything")


# --- clients on other hosts


@command.command("door")
@click.option(
    "--save", "path", metavar="FILE", default="", help="write it to this file, for --credentials FILE"
)
@pass_choices
def door(choices: Choices, path: str) -> None:
    """Print the public key of the cluster's encrypted ports: clients on other hosts need it.

    \b
    gossipq cluster door --save door.credentials
    gossipq -s tcp://ada:7700 --credentials door.credentials topic ls

    Ask on the host of a node. In a cluster with users, `gossipq user add NAME --save FILE` writes it, too.
    """
    from gossipq_client.values import file_text

    with ask.connect(choices) as mq:
        status = mq.admin.raw.status()
    if not status.door:
        raise failures.Failure(
            "not_encrypted",
            f"{status.node} does not encrypt: its clients need no key",
            "node.encrypt says when it does: the sample cluster.toml explains it",
            failures.CONFLICT,
        )
    text = file_text(b"", status.door)
    if path:
        access.save(path, b"", status.door)
    out = Output(choices)
    out.one(
        {"door": status.door[:KEY_BYTES].hex(), "file": path},
        f"the key is in {path}" if path else text.rstrip(),
        text,
    )


# --- new nodes


@command.command("invite")
@click.option(
    "--expires",
    "expires_s",
    type=Duration(lasting=True),
    default=86_400.0,
    help="how long the invitation is valid (1d)",
)
@secret_option
@pass_choices
def invite(choices: Choices, expires_s: float, secret_file: str) -> None:
    """Print an invitation for one more node, valid once: address, public key and a token.

    \b
    gossipq cluster invite
    gossipq cluster invite --expires 10m

    A machine with the invitation can join the cluster, and gets its secret: protect it like a password.
    """
    with ask.connect(choices) as mq:
        status = mq.admin.raw.status()
        mine = next((row.endpoint for row in status.members if row.copy == status.copy), "")
        if not status.door or not mine:
            raise failures.Failure(
                "not_encrypted",
                f"{status.node} does not encrypt, so an invitation could be read on its way",
                "give the new node the same --secret-file, and --join HOST",
                failures.CONFLICT,
            )
        token = access.made_token(None)[0]
        row = Invite(digest(token), int((time.time() + expires_s) * 1000))
        now_ms = time.time_ns() // 1_000_000
        old = [each.digest for each in mq.admin.raw.access().invites if each.expires_ms < now_ms]
        access.change_by(mq, AccessChange(invites=[row], invites_gone=old), secret_file)
    invited = Invitation(mine.removeprefix("tcp://"), status.door, token)
    out = Output(choices)
    out.one({"invitation": invited.text, "expires": iso(row.expires_ms)}, invited.command, invited.text)
    out.say(f"valid for one node, until {moment(row.expires_ms)}")


# --- options of the cluster


@command.group("config", cls=Noun)
def config() -> None:
    """Show, compare and change the options of [cluster], which all nodes have in common."""


@config.command("show")
@pass_choices
def show_options(choices: Choices) -> None:
    """Show the options of [cluster], and when a change of each takes effect.

    \b
    gossipq cluster config show
    gossipq cluster config show -o json
    """
    from gossipq.config import in_force

    with ask.connect(choices) as mq:
        options = mq.admin.raw.members().options
    rows = [{"key": key, "value": _toml(text), "changes": in_force(key)} for key, text in options.items()]
    Output(choices).rows([Column("key"), Column("value"), Column("changes")], rows)


@config.command("diff")
@pass_choices
def diff(choices: Choices) -> int:
    """List nodes that run with other options than the cluster has; exits 1 when there are some.

    \b
    gossipq cluster config diff

    A node that was started before an option was changed runs with the old one until its next start.
    """

    out = Output(choices)
    with ask.connect(choices) as mq:
        told, asked = mq.admin.raw.members(), mq.admin.raw.status()
    rows, silent = [], []
    for member in told.members:
        try:
            with ask.connect(ask.elsewhere(choices, member.endpoint, asked)) as mq:
                running = {row.key: row.value for row in mq.admin.raw.running_config()}
        except GossipqError:
            silent.append(member.name)
            continue
        for key, text in told.options.items():
            if key not in limits.OPTIONS_AT_ONCE and key in running and running[key] != _toml(text):
                rows.append(
                    {"node": member.name, "key": key, "runs_with": running[key], "cluster": _toml(text)}
                )
    out.rows([Column("node"), Column("key"), Column("runs_with"), Column("cluster")], rows)
    if silent:
        out.say(f"{', '.join(silent)} did not answer")
    if rows:
        out.say(
            "These nodes take the cluster's value over at their next start: restart them one after another."
        )
    elif not silent:
        out.say("every node runs with the options of the cluster")
    return failures.FAILED if rows or silent else failures.DONE


@config.command("set")
@click.argument("changes", metavar="KEY=VALUE...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="check and show, change nothing")
@secret_option
@pass_choices
def set_options(choices: Choices, changes: tuple[str, ...], dry_run: bool, secret_file: str) -> None:
    """Change options of [cluster] while it runs.

    \b
    gossipq cluster config set cluster.replace_ms=600000
    gossipq cluster config set cluster.auto_create=false cluster.topic.retention_ms=86400000 --dry-run

    The change is replicated as a record is. The answer says when it takes effect.
    """
    from gossipq.config import in_force

    asked = dict(_change(text) for text in changes)
    out = Output(choices)
    with ask.connect(choices) as mq:
        before = mq.admin.raw.members().options
        after = before | asked
        if not dry_run:
            after = mq.admin.raw.set_cluster_options(asked, secret_of(secret_file)).options
    columns = [Column(name) for name in ("key", "before", "after", "in_force")]
    rows = [
        {
            "key": key,
            "before": _toml(before.get(key, "")),
            "after": _toml(after[key]),
            "in_force": in_force(key),
        }
        for key in asked
    ]
    out.rows(columns, rows)
    if dry_run:
        out.say("nothing was changed")
        return
    out.say("Write it into the cluster.toml of each node that names this option, or leave it out there. A")
    out.say("node whose file has the former value or the default takes it over; with any other it ends with")
    out.say("exit code 78 at its next start. `gossipq cluster config diff` says which nodes to restart.")


def _change(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE to (dotted key, JSON text). Raises UsageError, ConfigError."""
    from gossipq import config as configuration
    from gossipq.errors import ConfigError

    key, equals, value = text.partition("=")
    key = key.strip() if key.strip().startswith("cluster.") else f"cluster.{key.strip()}"
    if not equals:
        raise click.UsageError(f"{text!r} is not KEY=VALUE")
    variable = f"{configuration.ENVIRONMENT_PREFIX}{key.upper().replace('.', '__')}"
    try:
        loaded = configuration.load("", {variable: value}, {})
    except ConfigError as error:  # the text was an argument, not a variable
        raise ConfigError(error.message.replace(f"environment {variable}", text), error.hint) from None
    return key, msgspec.json.encode(configuration.value_of(loaded.config, key)).decode()


def _toml(text: str) -> str:
    """Format a value as in cluster.toml."""
    from gossipq.config import toml_text

    return toml_text(msgspec.json.decode(text)) if text else ""
