"""cluster.toml, environment and flags: precedence, origins, and errors that say what to type."""

from pathlib import Path

import msgspec
import pytest

from gossipq import config, limits
from gossipq.config import Config, find, load, options, value_of
from gossipq.core.delivery import check_policy
from gossipq.core.requests.consume import check_group
from gossipq.endpoints import endpoint
from gossipq.errors import BadRequest, ConfigError
from gossipq.values import GroupConfig, GroupDefaults, TopicConfig, TopicDefaults

SAMPLE = Path(__file__).parents[2] / "cluster.toml"


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> str:
        (tmp_path / "cluster.toml").write_text(text)
        return str(tmp_path / "cluster.toml")

    return write


def test_the_sample_shows_every_option_at_its_default() -> None:
    loaded = load(str(SAMPLE), {}, {})
    assert loaded.config == Config()
    assert [key for key, origin in loaded.origins.items() if origin == "default"] == []


def test_without_anything_the_defaults_hold() -> None:
    loaded = load("", {}, {})
    assert loaded.config == Config()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.config.cluster.topic.message() == TopicConfig()
    ruled = {
        "lease_ms": limits.LEASE_MS,
        "attempts_max": limits.ATTEMPTS_MAX,
        "backoff_ms": list(limits.BACKOFF_MS),
    }
    assert loaded.config.cluster.group.message() == GroupConfig(**ruled)


def test_flag_before_environment_before_file_before_default(write) -> None:
    path = write("[node]\nworkers = 1\nname = 'file'\ndata = 'file'\n")
    environment = {
        "GOSSIPQ_NODE__NAME": "environment",
        "GOSSIPQ_NODE__DATA": "environment",
        "GOSSIPQ_SERVER": "of the client",
    }
    loaded = load(path, environment, {"node.data": "flag", "node.bind": None, "cluster.name": "shop"})
    node = loaded.config.node
    assert (node.workers, node.name, node.data, loaded.config.cluster.name) == (
        1,
        "environment",
        "flag",
        "shop",
    )
    assert loaded.origins["node.workers"] == f"file {path}"
    assert loaded.origins["node.name"] == "environment GOSSIPQ_NODE__NAME"
    assert loaded.origins["node.data"] == "flag --data"
    assert loaded.origins["cluster.name"] == "flag --cluster"
    assert loaded.origins["node.bind"] == "default"


def test_the_environment_reaches_every_option() -> None:
    environment = {"GOSSIPQ_CLUSTER__TOPIC__PARTITIONS": "7", "GOSSIPQ_NODE__INSECURE": "true"}
    loaded = load("", environment, {}).config
    assert (loaded.cluster.topic.partitions, loaded.node.insecure) == (7, True)


def test_policies_of_topics_and_groups(write) -> None:
    text = """
        [cluster.topic]
        ttl_ms = 60_000
        expire = "drop"
        dedup_ms = 1_000
        dedup_count = 10
        trace = "all"
        lease_ms = 5_000
        attempts_max = 3
        backoff_ms = [100, 0, 500]
        [cluster.group]
        lease_ms = 7_000
        attempts_max = 4
        backoff_ms = [50]
        parked_max = 7
    """
    cluster = load(write(text), {}, {}).config.cluster
    said = {"ttl_ms": 60_000, "expire": "drop", "dedup_ms": 1_000, "dedup_count": 10, "trace": "all"}
    assert cluster.topic.message() == TopicConfig(
        **said, lease_ms=5_000, attempts_max=3, backoff_ms=[100, 0, 500]
    )
    assert cluster.group.message() == GroupConfig(
        lease_ms=7_000, attempts_max=4, backoff_ms=[50], parked_max=7
    )


def test_virtual_topics(write) -> None:
    cluster = load(
        write('[cluster.virtual]\naudit = ["orders", "billing"]\n"eu.all" = ["eu.fr"]'), {}, {}
    ).config.cluster
    assert cluster.virtual == {"audit": ["orders", "billing"], "eu.all": ["eu.fr"]}


def test_lists_and_tables_in_the_environment_are_written_as_in_the_file() -> None:
    environment = {
        "GOSSIPQ_CLUSTER__GROUP__BACKOFF_MS": "[1_000, 5_000]",
        "GOSSIPQ_CLUSTER__VIRTUAL": '{audit = ["orders"]}',
        "GOSSIPQ_NODE__NAME": "[ada]",
    }
    loaded = load("", environment, {}).config
    assert loaded.cluster.group.backoff_ms == (1_000, 5_000)
    assert loaded.cluster.virtual == {"audit": ["orders"]}
    assert loaded.node.name == "[ada]"
    with pytest.raises(ConfigError, match=r"environment GOSSIPQ_CLUSTER__GROUP__BACKOFF_MS: .*'soon'"):
        load("", {"GOSSIPQ_CLUSTER__GROUP__BACKOFF_MS": "soon"}, {})


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("[cluster.topic]\npartiton = 3", "cluster.topic.partiton", "`cluster.topic.partitions`"),
        ("[cluster]\npartitions = 3", "cluster.partitions", "`cluster.topic.partitions`"),
        ("[node]\nbindd = 3", "node.bindd", "`node.bind`"),
        ("node = 3", "node", "[node]"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_right_one(write, text: str, key: str, nearest: str) -> None:
    path = write(text)
    with pytest.raises(ConfigError, match=f"`{key}`") as refused:
        load(path, {}, {})
    assert path in refused.value.message
    assert nearest in refused.value.hint


@pytest.mark.parametrize(("table", "nearest"), [("cluster.topics", "cluster.topic"), ("nodes", "node")])
def test_an_unknown_table_is_named_with_the_nearest_right_one(write, table: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(write(f"[{table}]\nname = 5"), {}, {})
    assert refused.value.message.endswith(f"unknown table [{table}]")
    assert refused.value.hint.startswith(f"did you mean [{nearest}]? the tables are [cluster], ")


def test_an_unknown_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"environment GOSSIPQ_NODE__BNID: unknown key `node\.bnid`"):
        load("", {"GOSSIPQ_NODE__BNID": "x"}, {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[node]\nworkers = 'two'", "node.workers = 'two': Expected `int`, got `str`"),
        ("[node]\nworkers = -1", "node.workers = -1: Expected `int` >= 0"),
        ("[node]\nname = 3", "node.name = 3: Expected `str`, got `int`"),
        ('[node]\nname = "a\\u001b"', "node.name"),
        ("[node]\nadvertise = 'a b'", "node.advertise = 'a b'"),
        ("[cluster.topic]\nretain = 'for ever'", "cluster.topic.retain = 'for ever'"),
        ("[cluster]\nname = ''", "cluster.name = ''"),
        ("[cluster]\nshards = 0", "cluster.shards = 0"),
        ("[node]\nmode = 'serfs'", "node.mode = 'serfs'"),
        ("[cluster.topic]\nexpire = 'later'", "cluster.topic.expire = 'later'"),
        ("[cluster.topic]\nbackoff_ms = [-1]", "cluster.topic.backoff_ms = [-1]"),
        ("[cluster.topic]\nttl_ms = -1", "cluster.topic.ttl_ms = -1: Expected `int` >= 0"),
        ("[cluster.group]\nattempts_max = 0", "cluster.group.attempts_max = 0: Expected `int` >= 1"),
        ("[cluster.group]\nbackoff_ms = []", "cluster.group.backoff_ms = []"),
        (f"[cluster.group]\nlease_ms = {limits.LEASE_TOTAL_MS_MAX + 1}", "cluster.group.lease_ms = 43200001"),
        ("[cluster.virtual]\naudit = 'orders'", "Expected `array`, got `str`"),
        ("[cluster.virtual]\naudit = []", "length >= 1"),
        ("[cluster.virtual]\neu.all = ['a']", "Expected `array`, got `object`"),
        ("[cluster.virtual]\naudit = ['a b']", "cluster.virtual = {'audit': ['a b']}"),
        (
            "[cluster.virtual]\naudit = ['audit']",
            "cluster.virtual: audit contains audit, which is virtual itself",
        ),
        ("[cluster.virtual]\na = ['b']\nb = ['c']", "cluster.virtual: a contains b, which is virtual itself"),
        ("[cluster.virtual]\na = ['b', 'b']", "cluster.virtual: a names a topic twice"),
        ("[node", "is not TOML"),
        ("[node]\ndrain_ms = 9223372036854775807", "node.drain_ms = 9223372036854775807"),
        ("[cluster]\nshards = 2\n[node]\nworkers = 3", "node.workers = 3 is more than cluster.shards = 2"),
    ],
)
def test_a_wrong_value_is_named(write, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(write(text), {}, {})
    assert says in refused.value.message


def test_no_default_is_one_that_a_shard_refuses() -> None:
    """Topics were made on first use, and none could be created or changed; groups had no consumer."""
    for kind, check in ((TopicDefaults, check_policy), (GroupDefaults, check_group)):
        for field in msgspec.inspect.type_info(kind).fields:
            if isinstance(field.type, msgspec.inspect.IntType):
                assert field.type.le is not None, field.name
                assert field.type.ge is not None, field.name
                for number in (field.type.ge, field.type.le):
                    check(kind(**{field.name: number}).message())
                for number in (field.type.ge - 1, field.type.le + 1):
                    if number or field.name not in GroupDefaults.__struct_fields__:  # 0: not set
                        with pytest.raises(BadRequest, match=field.name):
                            check(kind(**{field.name: number}).message())


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("cluster.topic.retain", "forever", "cluster.topic.retain = forever: JSON is malformed"),
        ("cluster.copies", "4", "for the cluster: cluster.copies = 4"),
        ("cluster.replace_ms", "-5", "Expected `int` >= 10000"),
        ("cluster.auto_create", '"no"', "Expected `bool`, got `str`"),
        ("cluster.virtual", '{"a": ["a"]}', "a contains a, which is virtual itself"),
    ],
)
def test_an_option_that_no_node_would_start_with_is_refused(key: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config.check_options({key: text})
    assert says in refused.value.message


def test_an_option_of_the_cluster_that_makes_sense_is_taken() -> None:
    """Also one that only a later version knows."""
    said = {"cluster.topic.backoff_ms": "[1,2]", "cluster.virtual": '{"all":["a"]}', "cluster.later": "1"}
    config.check_options(said)


def test_the_allowed_words_are_listed(write) -> None:
    with pytest.raises(ConfigError) as refused:
        load(write("[cluster.topic]\nlevel = 'memory'"), {}, {})
    assert refused.value.hint == "allowed: 'stored', 'none'"


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"config /none/cluster\.toml cannot be read: No such file"):
        load("/none/cluster.toml", {}, {})


def test_a_bound_of_memory_leaves_room_to_work() -> None:
    with pytest.raises(ConfigError, match=f"needs {limits.PROCESS_MEMORY_BYTES_MIN} at least"):
        load("", {}, {"node.memory_bytes_max": limits.PROCESS_MEMORY_BYTES_MIN - 1})
    for allowed in (0, limits.PROCESS_MEMORY_BYTES_MIN):
        assert load("", {}, {"node.memory_bytes_max": allowed}).config.node.memory_bytes_max == allowed


@pytest.mark.parametrize(
    "bind", ["tcp://0.0.0.0:7700", "tcp://192.0.2.7:7700", "tcp://broker.example:7700", "tcp://*:7700"]
)
def test_an_address_others_reach_needs_insecure(bind: str) -> None:
    with pytest.raises(ConfigError, match="is open to other machines") as refused:
        load("", {}, {"node.bind": bind})
    assert "--insecure" in refused.value.hint
    load("", {}, {"node.bind": bind, "node.insecure": True, "node.advertise": "broker.example"})


def test_a_wildcard_needs_something_to_tell_clients() -> None:
    with pytest.raises(ConfigError) as refused:
        load("", {}, {"node.bind": "tcp://0.0.0.0:7700", "node.insecure": True})
    assert "--advertise" in refused.value.hint


@pytest.mark.parametrize(
    "bind",
    [
        "127.0.0.1:7700",
        "tcp://127.0.0.1",
        "tcp://:7700",
        "tcp://h:port",
        "tcp://h:0",
        "tcp://h:65500",
        "udp://h:1",
        "tcp://::1:7700",
        "",
    ],
)
def test_an_address_that_is_none_is_refused(bind: str) -> None:
    with pytest.raises(ConfigError, match=r"node\.bind"):
        endpoint(bind)


def test_endpoints_count_from_the_first() -> None:
    place = endpoint("tcp://127.0.0.1:7700")
    assert (place.step(0), place.step(41), place.step(1, "host")) == (
        "tcp://127.0.0.1:7700",
        "tcp://127.0.0.1:7741",
        "tcp://host:7701",
    )
    assert [
        endpoint(f"tcp://{host}:1").is_loopback
        for host in ("127.0.0.9", "localhost", "[::1]", "10.0.0.1", "*")
    ] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert endpoint("tcp://[::]:7700").step(1, "fd00::2") == "tcp://[fd00::2]:7701"
    local = endpoint("ipc:///run/gossipq/node")
    assert (local.is_loopback, local.step(0), local.step(2)) == (
        True,
        "ipc:///run/gossipq/node",
        "ipc:///run/gossipq/node.2",
    )


def test_the_file_is_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, etc = tmp_path / "here.toml", tmp_path / "etc.toml"
    monkeypatch.setattr(config, "SEARCH", (str(here), str(etc)))
    assert find(None, {}) == ""
    etc.touch()
    assert find(None, {}) == str(etc)
    here.touch()
    assert find(None, {}) == str(here)
    assert find(None, {"GOSSIPQ_CONFIG": "asked.toml"}) == "asked.toml"
    assert find("flag.toml", {"GOSSIPQ_CONFIG": "asked.toml"}) == "flag.toml"


def test_every_option_has_a_value() -> None:
    keys = [key for key, _ in options()]
    assert keys[0] == "cluster.name"
    assert value_of(Config(), "cluster.topic.partitions") == 1
    assert all(value_of(Config(), key) is not None for key in keys)
