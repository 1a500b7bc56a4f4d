"""Enrolment: a directory without a cluster joins one, or founds one when all nodes agree."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import NamedTuple

import msgspec

from gossipq.clock import SystemClock
from gossipq.config import SECRET_FILE, Loaded
from gossipq.endpoints import Invitation, invitation
from gossipq.wire import ownership, proofs
from gossipq_node import trust
from gossipq_node.actors import loop
from gossipq_node.actors.newcomer import FOUNDER, Founds, Joined, Newcomer, Newcoming
from gossipq_node.composition import (
    LOOPBACK,
    Mode,
    gossip_settings,
    insisted,
    keys_of,
    member_of,
    options_of,
    place_of,
)
from gossipq_node.directory import DataDirectory, DirectoryManifest
from gossipq_node.files import keep_access, keep_roster

SAY_AGAIN_MS = 30_000
MOVED = (
    "%s came from another machine or disk: this node joins its cluster anew, with the records that it has, "
    "when no other node has its name"
)


def become_member(
    loaded: Loaded, directory: DataDirectory, manifest: DirectoryManifest, mode: Mode, log: logging.Logger
) -> DirectoryManifest | None:
    """Wait until the directory belongs to a cluster. Raises ConfigError, StoreError.

    None: a signal came first.
    """

    def pledge(what: str) -> None:
        directory.write(msgspec.structs.replace(manifest, pledge=what))

    return _enrolled(loaded, directory, manifest, mode, log, pledge)


def rejoin(
    loaded: Loaded, directory: DataDirectory, manifest: DirectoryManifest, mode: Mode, log: logging.Logger
) -> DirectoryManifest | None:
    """Wait until the cluster of a moved directory accepts it as another copy.

    The cluster refuses it while the original node exists. Nothing is written before the cluster has
    accepted. None: a signal came first. Raises ConfigError, StoreError.
    """
    log.warning(MOVED, directory.path)
    mine = msgspec.structs.replace(
        directory.renewed(manifest), predecessors=[], cluster_uuid="", pledge=manifest.cluster_uuid
    )
    peer = (*loaded.config.node.peer, *directory.others(manifest))
    node = msgspec.structs.replace(loaded.config.node, peer=tuple(dict.fromkeys(peer)))
    there = Loaded(msgspec.structs.replace(loaded.config, node=node), loaded.origins, loaded.path)
    return _enrolled(there, directory, mine, mode, log, pledge=lambda what: None)


def _enrolled(
    loaded: Loaded,
    directory: DataDirectory,
    manifest: DirectoryManifest,
    mode: Mode,
    log: logging.Logger,
    pledge: Callable[[str], None],
) -> DirectoryManifest | None:
    # imported late: nodes that join no cluster do not need it
    from gossipq_node.adapters.zmq_mailbox import ZmqMailbox

    config = loaded.config
    named = next(filter(None, map(invitation, config.cluster.join)), None)
    was_let_in = bool(manifest.pledge) and (directory.path / SECRET_FILE).exists()
    secret = trust.secret_of(config.node, directory.path, invited=named is not None and not was_let_in)
    invited = named if not secret else None
    # without the secret its agent could not read anything
    alone: Mode = "static" if invited else mode
    with _signals() as (stopped, wake), _others(loaded, directory, manifest, alone, secret) as others:
        place = place_of(config)
        keys, next_key = keys_of(config, directory, manifest, secret, invited.door if invited else b"")
        encrypts = keys is not None and keys.encrypts
        clear = LOOPBACK if place.local(encrypts, config.node.insecure) else ""
        doors = place.doors(0) if encrypts else ()
        mailbox = ZmqMailbox(place.listen.step(0, clear), wake=(wake,), keys=keys, doors=doors)
        try:
            member = member_of(config, manifest, keys, next_key)
            told, token = newcoming(loaded, manifest, secret, mode), partial(proofs.token, secret)
            told = by_invitation(msgspec.structs.replace(told, member=member), named, bool(secret))
            newcomer = Newcomer(told, mailbox, token, pledge, others.found)
            clock, said = SystemClock(), _Saying(log)

            def waits() -> bool:
                said.say(
                    "; ".join(filter(None, (newcomer.waiting_for(), others.trouble()))), clock.now().boot_ms
                )
                return not (newcomer.done or stopped())

            loop.run(newcomer, mailbox, clock, waits)
        finally:
            mailbox.close()
    if newcomer.failure is not None:
        raise newcomer.failure
    if isinstance(newcomer.outcome, Founds):
        log.info("all %d nodes agreed: this one founds the cluster", told.expect)
        return directory.found(
            config.cluster.name, manifest.workers, manifest.shards or config.cluster.shards
        )
    return _joined(directory, manifest, newcomer.outcome, log) if newcomer.outcome else None


def newcoming(loaded: Loaded, manifest: DirectoryManifest, secret: bytes, mode: Mode) -> Newcoming:
    """Return how this directory enters a cluster, by its state and the options.

    A witness founds no cluster, and neither does a directory that has begun to join one. Nodes with
    a list of addresses and without `expect` found a cluster together if all have the same list;
    otherwise each would wait for another one.
    """
    config, member, options = loaded.config, member_of(loaded.config, manifest), options_of(loaded.config)
    founds = not manifest.witness and (not manifest.pledge or FOUNDER in manifest.pledge)
    expect = config.cluster.expect if founds else 0
    named = mode == "static" and not expect and founds
    if named:
        addresses = sorted({member.endpoint, *config.node.peer})
        expect, options = len(addresses), options | {"node.peer": ", ".join(addresses)}
    return Newcoming(
        member=member,
        session=ownership.unowned(os.urandom(16)),
        workers=manifest.workers,
        shards=manifest.shards,
        expect=expect,
        named=named,
        peers=config.node.peer,
        insisted=insisted(config, loaded.origins, manifest.said),
        options=options,
        founding=proofs.token(secret, proofs.FOUNDING),
        pledge=manifest.pledge,
    )


def by_invitation(told: Newcoming, named: Invitation | None, knows: bool) -> Newcoming:
    """Adjust the settings for an invitation.

    A node that was admitted, and killed before its directory recorded that, already has the secret.
    It uses that, and finds the cluster at the address in the invitation.
    """
    if named is None or (knows and not told.pledge):
        return told
    told = msgspec.structs.replace(told, peers=(f"tcp://{named.address}", *told.peers))
    return told if knows else msgspec.structs.replace(told, expect=0, invite=named.token)


def _joined(
    directory: DataDirectory, manifest: DirectoryManifest, joined: Joined, log: logging.Logger
) -> DirectoryManifest:
    """Record that the directory belongs to the cluster."""
    mine = msgspec.structs.replace(
        manifest,
        cluster_uuid=joined.cluster.hex(),
        cluster_name=joined.name,
        shards=joined.shards,
        workers=joined.member.workers,
        joined=True,
        former=[cluster.hex() for cluster in joined.former],
        options=joined.options,
        pledge="",
    )
    if joined.secret:
        trust.entrust(directory.path, joined.secret)
    keep_roster(directory.roster_file, joined.version, joined.members)
    if joined.access is not None:
        keep_access(directory.access_file, joined.access)
    directory.belong(mine)
    names = ", ".join(member.name for member in joined.members)
    log.info("joined cluster %s (%s): %s", joined.name, joined.cluster.hex()[:8], names)
    return mine


class _Saying:
    """Logs what the node waits for: when it changes, and every half minute."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._text = ""
        self._again_ms = 0

    def say(self, text: str, now_ms: int) -> None:
        if text != self._text or now_ms >= self._again_ms:
            self._text, self._again_ms = text, now_ms + SAY_AGAIN_MS
            self._log.info("%s", text)


class _Others(NamedTuple):
    """Nodes that gossip has found."""

    found: Callable[[], list[str]]  #: returns their addresses
    trouble: Callable[[], str]  #: returns why nodes may be missing, for people


@contextmanager
def _others(
    loaded: Loaded, directory: DataDirectory, manifest: DirectoryManifest, mode: Mode, secret: bytes
) -> Iterator[_Others]:
    """Run gossip while the block runs."""
    settings = gossip_settings(loaded.config, directory, manifest, mode, secret, [])
    if settings is None or settings.mode != "serf":
        yield _Others(list, str)
        return
    from gossipq_node.adapters.serf_membership import SerfMembership

    membership = SerfMembership(settings)
    try:
        yield _Others(lambda: [found.endpoint for found in membership.found()], lambda: membership.state)
    finally:
        membership.close(polite=False)  # the node starts its own agent in a moment


@contextmanager
def _signals() -> Iterator[tuple[Callable[[], bool], int]]:
    """Yield (whether SIGTERM or SIGINT came, a descriptor that is readable then)."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    wakeup = signal.set_wakeup_fd(writer)
    try:
        yield lambda: bool(came), reader
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
