"""How options and a manifest become what each process is told."""

import logging
from contextlib import closing
from pathlib import Path

import pytest

from gossipq.config import Config, load
from gossipq.errors import ConfigError
from gossipq_node import machine, main
from gossipq_node.directory import DataDirectory, Manifest


def house(path: Path, **flags: object) -> tuple[Config, DataDirectory, Manifest]:
    given = {f"node.{name}": value for name, value in flags.items()} | {"node.data": str(path), "cluster.shards": 8}
    config = load("", {}, given).config
    with closing(DataDirectory(path)) as directory:
        return config, directory, directory.found(config.cluster.name, 2, config.cluster.shards)


def test_every_shard_has_one_worker_and_one_route(tmp_path: Path) -> None:
    config, directory, manifest = house(tmp_path)
    workers = [main.worker_settings(config, directory, manifest, worker, 0, True) for worker in range(2)]
    assert sorted(shard for worker in workers for shard in worker.owned) == list(range(8))
    assert [route.shard for route in workers[0].routes] == list(range(8))
    for worker in workers:
        assert {worker.routes[shard].endpoint for shard in worker.owned} == {worker.clients_bind} == {worker.endpoint}
        assert {worker.peers[shard] for shard in worker.owned} == {worker.peers_bind}
    assert len({worker.directory for worker in workers}) == 2
    assert main.frontdoor_settings(config, manifest, True).forwards == tuple(worker.clients_bind for worker in workers)


def test_the_ports_are_those_of_the_protocol(tmp_path: Path) -> None:
    config, directory, manifest = house(tmp_path)
    worker, door = (
        main.worker_settings(config, directory, manifest, 1, 3, True),
        main.frontdoor_settings(config, manifest, True),
    )
    assert (worker.clients_bind, worker.peers_bind) == ("tcp://127.0.0.1:7702", "tcp://127.0.0.1:7742")
    assert (door.clients_bind, door.peers_bind, worker.frontdoor) == (
        "tcp://127.0.0.1:7700",
        "tcp://127.0.0.1:7740",
        door.peers_bind,
    )
    assert worker.restarts == 3


def test_clients_are_told_the_advertised_host_and_processes_use_loopback(tmp_path: Path) -> None:
    config, directory, manifest = house(tmp_path, bind="tcp://0.0.0.0:7700", advertise="broker.example", insecure=True)
    worker, door = (
        main.worker_settings(config, directory, manifest, 1, 0, True),
        main.frontdoor_settings(config, manifest, True),
    )
    assert (worker.clients_bind, worker.endpoint) == ("tcp://0.0.0.0:7702", "tcp://broker.example:7702")
    assert (worker.frontdoor, door.forwards[1], worker.peers[1]) == (
        "tcp://127.0.0.1:7740",
        "tcp://127.0.0.1:7702",
        "tcp://127.0.0.1:7742",
    )
    assert [warning for warning in door.warnings if "--insecure" in warning]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"node.workers": 3}, "flag --workers: node.workers = 3, but"),
        ({"cluster.shards": 16}, "cluster.shards = 16, but"),
        ({"cluster.name": "other"}, "flag --cluster: cluster.name = 'other', but"),
    ],
)
def test_what_was_founded_otherwise_is_refused(tmp_path: Path, flags: dict[str, object], says: str) -> None:
    manifest = house(tmp_path)[2]
    with pytest.raises(ConfigError) as refused:
        main.check_options(load("", {}, {"node.data": str(tmp_path), **flags}), manifest, logging.getLogger("node"))
    assert says in refused.value.message


def test_a_larger_machine_is_told_of_and_used_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = house(tmp_path)[2]
    monkeypatch.setattr(machine, "worker_count", lambda: 16)
    with caplog.at_level(logging.INFO):
        main.check_options(load("", {}, {}), manifest, logging.getLogger("node"))
    assert "this machine has 16 cores: gossipq store reshard" in caplog.text
    assert "--workers 8" in caplog.text
