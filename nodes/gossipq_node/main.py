"""The composition root: options and a data directory become the processes of one node."""

import logging
import socket
import sys
import time
from collections.abc import Callable
from typing import TextIO

from gossipq import limits
from gossipq.config import Config, Endpoint, Loaded, endpoint
from gossipq.errors import ConfigError, GossipqError
from gossipq.values import Route
from gossipq_node import machine
from gossipq_node.directory import DataDirectory, Manifest
from gossipq_node.processes import run_frontdoor, run_worker
from gossipq_node.settings import FrontdoorSettings, WorkerSettings
from gossipq_node.supervisor import Child, Supervisor

EXIT_FAILED, EXIT_CONFIG = 1, 78


def run(loaded: Loaded) -> int:
    """Runs a node until SIGTERM or SIGINT; returns the exit code. Errors are one line and a hint on stderr."""
    begin = time.monotonic()
    log = machine.open_log("node", as_json := not sys.stderr.isatty())
    try:
        directory = DataDirectory(loaded.config.node.data)
        try:
            manifest = directory.found(loaded.config.cluster.name, _workers_of_new(loaded.config), loaded.config.cluster.shards)
            check_options(loaded, manifest, log)

            def announce() -> None:
                seconds = time.monotonic() - begin
                clients = endpoint(loaded.config.node.bind).step(0, loaded.config.node.advertise)
                print(f"ready in {seconds:.1f} s  clients {clients}  data {loaded.config.node.data}", flush=True)

            return supervisor(loaded.config, directory, manifest, announce, log, as_json).run()
        finally:
            directory.close()
    except GossipqError as error:
        return complain(error, sys.stderr)


def complain(error: GossipqError, stream: TextIO) -> int:
    """One line, then the next step; returns the exit code."""
    print(f"error: {error.message}", file=stream)
    if error.hint:
        print(f" hint: {error.hint}", file=stream)
    return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED


def _workers_of_new(config: Config) -> int:
    """Worker processes of a new directory."""
    return config.node.workers or min(machine.worker_count(), limits.WORKERS_MAX, config.cluster.shards)


def check_options(loaded: Loaded, manifest: Manifest, log: logging.Logger) -> None:
    """Raises ConfigError where options contradict what the directory was founded with."""
    config, origins = loaded.config, loaded.origins
    if config.node.workers and config.node.workers != manifest.workers:
        raise ConfigError(
            f"{origins['node.workers']}: node.workers = {config.node.workers}, but {config.node.data} holds {manifest.workers}",
            f"start with --workers {manifest.workers}, or first: gossipq store reshard --data {config.node.data} "
            f"--workers {config.node.workers}",
        )
    for key, asked, has in (
        ("cluster.shards", config.cluster.shards, manifest.shards),
        ("cluster.name", config.cluster.name, manifest.cluster_name),
    ):
        if asked != has and origins[key] != "default":
            raise ConfigError(
                f"{origins[key]}: {key} = {asked!r}, but {config.node.data} was founded with {has!r}",
                "leave it out, or give another --data",
            )
    if not config.node.workers and (cores := machine.worker_count()) > manifest.workers:
        log.info(
            "%d workers as the directory was made for; this machine has %d cores: gossipq store reshard --data %s --workers %d",
            manifest.workers,
            cores,
            config.node.data,
            min(cores, limits.WORKERS_MAX, manifest.shards),
        )


def supervisor(
    config: Config,
    directory: DataDirectory,
    manifest: Manifest,
    announce: Callable[[], None],
    log: logging.Logger,
    log_json: bool,
) -> Supervisor:
    """All processes of the node, not started yet."""
    workers = [
        Child(
            f"worker-{worker}",
            run_worker,
            lambda restarts, worker=worker: worker_settings(config, directory, manifest, worker, restarts, log_json),  # type: ignore[misc]
        )
        for worker in range(manifest.workers)
    ]
    frontdoor = Child("frontdoor", run_frontdoor, lambda restarts: frontdoor_settings(config, manifest, log_json))
    return Supervisor(workers, frontdoor, config.node.drain_ms, announce, log)


def node_name(config: Config) -> str:
    return config.node.name or socket.gethostname()


def _place(config: Config) -> tuple[Endpoint, str, str]:
    """Where the node listens, the host clients are told, the host its own processes use."""
    place = endpoint(config.node.bind)
    return place, config.node.advertise or place.host, "127.0.0.1" if place.is_wildcard else place.host


def client_routes(config: Config, manifest: Manifest) -> tuple[Route, ...]:
    place, host, _ = _place(config)
    return tuple(
        Route(shard, 0, place.step(limits.CLIENT_PORT_STEP + shard % manifest.workers, host))
        for shard in range(manifest.shards)
    )


def worker_settings(
    config: Config, directory: DataDirectory, manifest: Manifest, worker: int, restarts: int, log_json: bool
) -> WorkerSettings:
    place, _, inside = _place(config)
    return WorkerSettings(
        worker=worker,
        node=node_name(config),
        voter=manifest.voter,
        predecessors=tuple(manifest.predecessors),
        cluster=bytes.fromhex(manifest.cluster_uuid),
        shards=manifest.shards,
        owned=tuple(range(worker, manifest.shards, manifest.workers)),
        routes=client_routes(config, manifest),
        peers=tuple(place.step(limits.PEER_PORT_STEP + shard % manifest.workers, inside) for shard in range(manifest.shards)),
        clients_bind=place.step(limits.CLIENT_PORT_STEP + worker),
        peers_bind=place.step(limits.PEER_PORT_STEP + worker),
        frontdoor=place.step(limits.FRONTDOOR_PEER_PORT_STEP, inside),
        directory=str(directory.store(manifest, worker)),
        map_bytes=config.node.map_bytes,
        disk_reserve_bytes=config.node.disk_reserve_bytes,
        disk_reserve_percent=config.node.disk_reserve_percent,
        memory_bytes_max=config.node.memory_bytes_max,
        window_bytes=config.cluster.window_bytes,
        auto_create=config.cluster.auto_create,
        topic=config.cluster.topic.message(),
        group=config.cluster.group.message(),
        virtual=config.cluster.virtual,
        boot=machine.boot_id(),
        restarts=restarts,
        log_json=log_json,
    )


def frontdoor_settings(config: Config, manifest: Manifest, log_json: bool) -> FrontdoorSettings:
    place, _, inside = _place(config)
    warnings = () if place.is_loopback else ("--insecure: anybody who reaches this address may read and write everything",)
    return FrontdoorSettings(
        node=node_name(config),
        cluster_name=manifest.cluster_name,
        cluster=bytes.fromhex(manifest.cluster_uuid),
        mode="standalone",
        shards=manifest.shards,
        clients_bind=place.step(0),
        peers_bind=place.step(limits.FRONTDOOR_PEER_PORT_STEP),
        routes=client_routes(config, manifest),
        forwards=tuple(place.step(limits.CLIENT_PORT_STEP + worker, inside) for worker in range(manifest.workers)),
        window_bytes=config.cluster.window_bytes,
        memory_bytes_max=config.node.memory_bytes_max,
        warnings=warnings,
        log_json=log_json,
    )
