"""The composition root: starts the processes of one node from options and a data directory."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TextIO

import msgspec

from gossipq import limits
from gossipq.config import DEFAULT, Config, Loaded, adopted, at_bounds, shown
from gossipq.endpoints import endpoint, host_port, invitation
from gossipq.errors import ConfigError, GossipqError, NoPlace, NotAdmitted
from gossipq_node import machine
from gossipq_node.actors.discovery import PAIR, pair_without_witness
from gossipq_node.adapters.places import check_free, check_known
from gossipq_node.composition import Composition, Mode, accepted, insisted, mode_of, place_of, said_here
from gossipq_node.directory import (
    MANIFEST,
    DataDirectory,
    DirectoryManifest,
    check_workers,
    workers_of_new,
)
from gossipq_node.enrolment import become_member, rejoin
from gossipq_node.processes import run_frontdoor, run_worker
from gossipq_node.recovery import known_members
from gossipq_node.service import Service
from gossipq_node.settings import GossipSettings
from gossipq_node.store_tool import known_options
from gossipq_node.supervisor import Child, Supervisor

ENCRYPTED = (
    "clients of other hosts are answered encrypted at %s: they name --credentials FILE, which "
    "`gossipq cluster door --save FILE` (or `gossipq user add NAME --save FILE`) makes here"
)
LEFT = (
    "%s is left over from a compact or reshard that was cut short, and takes space: gossipq store compact "
    "--data %s removes it, while this node is stopped"
)
EXIT_STOPPED, EXIT_FAILED, EXIT_CONFIG = 0, 1, 78


def run(loaded: Loaded, witness: bool = False) -> int:
    """Run a node until SIGTERM or SIGINT. Returns the exit code.

    Errors are printed on stderr, as one line and a hint.
    """
    begin = time.monotonic()
    log = machine.open_log("node", as_json := not sys.stderr.isatty())
    os.umask(0o077)  # files, directories and sockets are accessible to this user only
    try:
        machine.check_file_limit()
        loaded = reachable(loaded)
        check_known(place_of(loaded.config).listen)
        if not (Path(loaded.config.node.data) / MANIFEST).exists():
            # checked first, so that a failed start leaves no directory behind
            check_free(place_of(loaded.config).listen)
        directory = DataDirectory(loaded.config.node.data)
        try:
            member = is_member(directory)
            mode = mode_of(loaded.config, member, log)
            manifest = belong(loaded, directory, mode, witness, log)
            if manifest is None:
                return EXIT_STOPPED
            if left := directory.other_generations(manifest):
                log.warning(LEFT, ", ".join(map(str, left)), directory.path)
            check_options(loaded, manifest, log)
            check_alone(loaded, directory, manifest)
            loaded, asked = agreed(loaded, directory, manifest, log)
            composition = Composition(
                loaded.config, directory, manifest, as_json, mode, shown(loaded), asked, member
            )

            def announce() -> None:
                say(ready_lines(composition, time.monotonic() - begin), log)
                if gossip := composition.gossip([]):
                    log.info(*how_to_join(gossip))

            return supervisor(composition, announce, log).run()
        finally:
            directory.close()
    except GossipqError as error:
        return complain(error, sys.stderr)


def reachable(loaded: Loaded) -> Loaded:
    """Return the options with an address for an invited node.

    If none is given, it listens where this host reaches the inviting node. Raises ConfigError.
    """
    invited = next(filter(None, map(invitation, loaded.config.cluster.join)), None)
    # an address that the operator gave counts
    if invited is None or loaded.origins["node.bind"] != DEFAULT:
        return loaded
    there = endpoint(f"tcp://{invited.address}", "cluster.join")
    try:
        bind = f"tcp://{host_port(machine.address_towards(there.host, there.port), limits.PORT)}"
    except OSError as error:
        raise NoPlace(
            f"the host of the invitation, {there.host}, is not reached: {error}", "say --bind tcp://HOST:PORT"
        ) from None
    node = msgspec.structs.replace(loaded.config.node, bind=bind)
    config = msgspec.structs.replace(loaded.config, node=node)
    return Loaded(config, loaded.origins | {"node.bind": "the invitation"}, loaded.path)


def say(lines: Iterable[str], log: logging.Logger) -> None:
    """Print lines on stdout. If that fails (full disk, closed pipe), the node continues."""
    try:
        for line in lines:
            print(line, flush=True)
    except OSError as error:
        log.warning("what is said on stdout is lost: %s", error.strerror)
        with open(os.devnull, "wb") as nowhere:  # buffered output would fail again at exit
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def ready_lines(composition: Composition, seconds: float) -> list[str]:
    """Return the lines that are printed once, when the node is ready."""
    what = "witness" if composition.manifest.witness else "clients"
    lines = [
        f"ready in {seconds:.1f} s  {what} {composition.member.endpoint}  data {composition.config.node.data}"
    ]
    lines += [ENCRYPTED % composition.door] if composition.door else []
    return lines + ([PAIR] if pair_without_witness(composition.directory.roster().members) else [])


def is_member(directory: DataDirectory) -> bool:
    manifest = directory.read()
    return manifest is not None and bool(manifest.cluster_uuid)


def how_to_join(gossip: GossipSettings) -> tuple[str, str, str]:
    """Return a log message with its arguments."""
    if gossip.mode == "serf":
        host, _, port = gossip.bind.rpartition(":")
        place = host_port(gossip.advertise or host, int(port))
        return "gossip at %s: other nodes join with --join %s", gossip.bind, place
    return "found at %s: other nodes join with --peer %s", gossip.member.endpoint, gossip.member.endpoint


def belong(
    loaded: Loaded, directory: DataDirectory, mode: Mode, witness: bool, log: logging.Logger
) -> DirectoryManifest | None:
    """Return the manifest of a directory that belongs to a cluster.

    It belongs already, founds one now, joins one, or was moved and joins its cluster again. None: a
    signal stopped the node meanwhile. Raises ConfigError, StoreError.
    """
    config, origins = loaded.config, loaded.origins
    cluster = config.cluster
    if mode != "standalone" and (moved := directory.moved()) is not None:
        return rejoin(loaded, directory, moved, mode, log)
    waits = bool(cluster.join or config.node.peer) or cluster.expect > 1
    # 0: the cluster that the node joins says how many shards it has
    shards = cluster.shards if origins["cluster.shards"] != "default" or not waits else 0
    manifest = directory.prepare(cluster.name, 1 if witness else workers_of_new(config), shards, witness)
    if witness and not manifest.witness:
        raise ConfigError(
            f"{config.node.data} is that of a full node",
            "give the witness a directory of its own with --data",
        )
    # after a recover, the directory continues the cluster that it had joined
    has_joined = manifest.joined or manifest.former
    if manifest.cluster_uuid and not has_joined and any(map(invitation, cluster.join)):
        raise ConfigError(
            f"{config.node.data} has a cluster of its own, and an invitation is for a node that has none",
            "give another --data to join that cluster; leave --join out to start this one again",
        )
    if manifest.cluster_uuid:
        return manifest
    if waits:
        return become_member(loaded, directory, manifest, mode, log)
    if witness:
        raise ConfigError(
            "a witness belongs to a cluster", "gossipq node --witness --join HOST, or --peer tcp://HOST:PORT"
        )
    if manifest.pledge:
        raise ConfigError(
            f"{config.node.data} has begun to join a cluster",
            "start with the same --join or --peer again, or empty the directory to begin anew",
        )
    if mode == "standalone" and config.node.mode == "auto":
        log.info(
            "standalone: Serf is not installed; with it, other nodes can join this one: apt-get install serf"
        )
    return directory.found(cluster.name, manifest.workers, cluster.shards)


def complain(error: GossipqError, stream: TextIO) -> int:
    """Print the error in one line, then its hint. Returns the exit code.

    Errors that another start can overcome do not count as configuration errors, so that a
    service manager tries again.
    """
    print(f"error: {error.message}", file=stream)
    if error.hint:
        print(f" hint: {error.hint}", file=stream)
    # systemd does not start a service again that ended with EXIT_CONFIG
    stays = isinstance(error, ConfigError | NotAdmitted) and not error.retryable
    return EXIT_CONFIG if stays else EXIT_FAILED


def check_options(loaded: Loaded, manifest: DirectoryManifest, log: logging.Logger) -> None:
    """Raise ConfigError if options contradict those with which the directory was founded."""
    config, origins = loaded.config, loaded.origins
    for key, asked, has in (
        ("cluster.shards", config.cluster.shards, manifest.shards),
        ("cluster.name", config.cluster.name, manifest.cluster_name),
    ):
        if asked != has and origins[key] != "default":
            raise ConfigError(
                f"{origins[key]}: {key} = {asked!r}, but {config.node.data} was founded with {has!r}",
                "leave it out, or give another --data",
            )
    check_workers(manifest, config.node, f"{origins['node.workers']}: node.workers")
    if not manifest.witness:
        _tell_of_cores(config, manifest, log)


def agreed(
    loaded: Loaded, directory: DataDirectory, manifest: DirectoryManifest, log: logging.Logger
) -> tuple[Loaded, dict[str, str]]:
    """Return the options for the node, and those that must hold in the cluster.

    An option in the file that is unchanged since the cluster agreed to it, but differs now, was
    changed by an operator: the new value is adopted. Raises ConfigError, StoreError.
    """
    said, known = said_here(loaded.config, loaded.origins), known_options(directory, manifest)
    asked = insisted(loaded.config, loaded.origins, manifest.said)
    for key in sorted(said.keys() - asked.keys()):
        if known.get(key, said[key]) != said[key]:
            log.warning(
                "%s: %s = %s, and %s in this cluster, which counts: write that, or leave it out",
                *(loaded.origins[key], key, said[key], known[key]),
            )
    for key, text in (held := at_bounds(known)).items():
        log.warning(
            "%s = %s in this cluster is beyond what this version allows, and %s counts here: gossipq cluster "
            "config set %s=%s",
            *(key, known[key], text, key, text),
        )
    members = known_members(directory, manifest)
    alone = not manifest.joined and all(member.copy == manifest.voter for member in members)
    kept = accepted(said, known, manifest.said, alone)
    if kept != manifest.said:
        directory.write(msgspec.structs.replace(manifest, said=kept))
    return adopted(loaded, known | held, asked), asked


def check_alone(loaded: Loaded, directory: DataDirectory, manifest: DirectoryManifest) -> None:
    """Raise ConfigError if mode is standalone, but the directory's cluster has other nodes.

    A copy that this one replaces (adopt) is not another node. It is listed until this copy joins.
    """
    if loaded.config.node.mode != "standalone":
        return
    mine = {manifest.voter, *manifest.predecessors}
    others = [member.name for member in known_members(directory, manifest) if member.copy not in mine]
    if not others and not manifest.joined:
        return
    place, names = loaded.config.node.data, ", ".join(sorted(others)) or "others"
    raise ConfigError(
        f"{place} belongs to cluster {manifest.cluster_name} together with {names}, and --mode standalone "
        "speaks to nobody",
        "leave out --mode standalone to go back to them; "
        f"to make it a cluster of its own: gossipq cluster recover --data {place}",
    )


def _tell_of_cores(config: Config, manifest: DirectoryManifest, log: logging.Logger) -> None:
    """Log if the machine has cores for more workers."""
    node, has = config.node, manifest.workers
    cores = min(machine.worker_count(), limits.WORKERS_MAX, manifest.shards)
    # The node keeps its number of workers, since each has a store of its own. `store reshard` moves shards
    # between stores while the node is stopped.
    if not node.workers and cores > has:
        text = (
            "%d workers as the directory was made for; this machine has %d cores: gossipq store reshard "
            "--data %s --workers %d"
        )
        log.info(text, has, machine.worker_count(), node.data, cores)


def supervisor(composition: Composition, announce: Callable[[], None], log: logging.Logger) -> Supervisor:
    """Return the supervisor of all processes of the node, not started yet."""
    workers = [
        Child(f"worker-{worker}", run_worker, partial(composition.worker, worker))
        for worker in range(composition.manifest.workers)
    ]
    frontdoor = Child("frontdoor", run_frontdoor, composition.frontdoor)
    return Supervisor(
        workers, frontdoor, composition.config.node.drain_ms, announce, log, Service(os.environ)
    )
