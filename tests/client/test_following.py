"""A client follows its cluster: other nodes, other leaders, old leaders that come back. Time is an
argument."""

import pytest

from client.world import SHARD, World, frontdoor, worker
from gossipq.errors import NotConfirmed
from gossipq.messages import (
    Ack,
    Confirm,
    CreateTopic,
    Deliver,
    Extend,
    Hello,
    Publish,
    RefusedMessage,
    Status,
    StatusReply,
    Subscribe,
    Welcome,
)
from gossipq.types import NODE_SHARD
from gossipq.values import Delivered, GroupOptions, Route, TopicConfig, TopicInfo
from gossipq.wire import batch as wire
from gossipq.wire import frames
from gossipq_client.session.credit import Subscription
from gossipq_client.session.packer import Flight, Topic
from gossipq_client.values.terms import Options

PARTITION = 9 << 16
NOTICED_MS = 500  #: after a new leader is known anywhere, the client has gone there


@pytest.fixture
def world() -> World:
    world = World()
    world.elect("b", 1)
    world.exchange()
    return world


def publish(world: World, topic: Topic, count: int = 1) -> list[Flight]:
    flights = [
        world.session.publishing.batches(topic.writers[0], [b"v"], None, b"", b"", "")[0]
        for _ in range(count)
    ]
    for flight in flights:
        world.session.publishing.take(flight)
    world.exchange()
    return flights


def subscribe(world: World) -> Subscription:
    subscription = Subscription("g", ("first", 0), (100, 100_000), GroupOptions(), names=["t"])
    world.session.consuming.cover(subscription, [TopicInfo(9, "t", 1, TopicConfig(), [SHARD])])
    world.run(50)
    assert subscription.parts[0].subscribed
    return subscription


def deliver(world: World, subscription: Subscription, name: str, offset: int, count: int, term: int) -> None:
    raw = bytes(wire.seal([b"%d" % at for at in range(offset, offset + count)]))
    piece = Delivered(PARTITION, offset, count, 1, len(raw), 10 * count)
    message = [frames.encode(Deliver(subscription.parts[0].number, [piece], 30_000), SHARD, 0, term), raw]
    world.session.arrived(worker(name), message)


class TestNodes:
    def test_a_client_that_knows_one_node_survives_that_node(self, world: World) -> None:
        world.kill("a")
        world.run(1_500)
        assert world.session.links.home.endpoint in (frontdoor("b"), frontdoor("c"))
        call = world.session.calls.ask(Status(), NODE_SHARD)
        world.exchange()
        assert isinstance(call.reply, StatusReply)

    def test_a_silent_home_is_left_after_about_a_second(self, world: World) -> None:
        world.freeze("a")
        call = world.session.calls.ask(Status(), NODE_SHARD)
        world.run(2_250)
        assert world.session.links.home.endpoint != frontdoor("a")
        assert call.done

    def test_those_that_the_user_named_come_first(self) -> None:
        world = World(names="abcde", knows="ea")
        world.run(250)
        assert world.session.links._places() == [*map(frontdoor, "eabcd")]

    def test_scouts_are_let_go_when_all_is_well_again(self, world: World) -> None:
        publish(world, world.topic())
        world.freeze("b")
        world.run(2_000)
        assert world.session.links._scouts
        world.thaw("b")
        world.run(12_000)
        assert not world.session.links._scouts
        assert world._wanted == {frontdoor("a"), worker("b")}

    def test_nobody_is_asked_for_routes_all_the_time_while_all_is_well(self, world: World) -> None:
        world.topic()
        world.run(60_000)
        assert len(world.got(Hello)) < 20

    def test_a_node_of_another_cluster_is_not_spoken_to(self, world: World) -> None:
        topic = world.topic()
        publish(world, topic)
        lane = next(iter(world.session.links._direct.values()))
        lane.greeting = 0
        stranger = Welcome(
            "n", b"x" * 16, "0", 1 << 20, 5_000, 1_000, [Route(SHARD, 99, "tcp://x:1")], 8, ["tcp://x:1"]
        )
        world.tell(lane.endpoint, stranger, SHARD, lane.id)
        assert not lane.greeting
        assert world.session.links.term(SHARD) == 1
        assert world.session.links.refusal is not None
        assert "cluster" in world.session.links.refusal.message

    def test_a_cluster_that_was_founded_anew_is_taken(self, world: World) -> None:
        home = world.session.links.home
        home.greeting = 0
        world.tell(home.endpoint, Welcome("n", b"x" * 16, "0", 1 << 20, 5_000, 1_000), NODE_SHARD, home.id)
        assert home.greeting
        assert world.session.links.cluster == b"x" * 16

    def test_why_nobody_lets_the_client_in_is_known(self, world: World) -> None:
        home = world.session.links.home
        home.greeting = 0
        world.tell(home.endpoint, RefusedMessage("busy", "waiting for two more nodes"), NODE_SHARD, home.id)
        assert world.session.links.refusal is not None
        assert world.session.links.refusal.message == "waiting for two more nodes"


class TestLeaders:
    def test_a_better_address_is_followed_at_once_with_the_same_sequences(self, world: World) -> None:
        topic = world.topic()
        publish(world, topic)
        world.elect("c", 2)
        flights = publish(world, topic, 3)
        assert all(flight.done for flight in flights), "no time has passed"
        assert [sequence for _, sequence in world.log] == [1, 2, 3, 4]

    def test_without_an_address_any_node_is_asked(self, world: World) -> None:
        topic = world.topic()
        publish(world, topic)
        world.nodes["b"].leads, world.nodes["b"].knows = 0, None
        (flight,) = publish(world, topic)
        world.run(400)
        assert not flight.done
        world.elect("c", 2, known_to="c")
        world.run(NOTICED_MS)
        assert flight.done
        assert [sequence for _, sequence in world.log] == [1, 2]

    @pytest.mark.parametrize("after_ms", [75, 225])
    def test_who_hands_over_and_leaves_is_replaced_within_a_moment(self, world: World, after_ms: int) -> None:
        topic = world.topic()
        publish(world, topic)
        world.run(1_000)
        world.kill("b")
        (flight,) = publish(world, topic)
        world.run(after_ms)
        world.elect("c", 2, known_to="c")
        world.run(75)
        assert flight.done

    def test_nodes_that_name_each_other_are_not_asked_in_a_circle(self, world: World) -> None:
        topic = world.topic()
        publish(world, topic)
        world.nodes["b"].leads = 0
        world.nodes["b"].knows, world.nodes["c"].knows = ("c", 1), ("b", 1)
        world.seen.clear()
        (flight,) = publish(world, topic)
        world.run(2_000)
        assert len(world.got(Publish)) < 25
        world.elect("c", 2, known_to="c")
        world.run(NOTICED_MS)
        assert flight.done

    def test_a_hand_over_is_followed_within_a_round(self, world: World) -> None:
        topic = world.topic()
        publish(world, topic)
        world.nodes["b"].leads, world.nodes["b"].knows = 0, None
        (flight,) = publish(world, topic)
        world.elect("c", 2)
        world.run(100)
        assert flight.done

    @pytest.mark.parametrize("how", ["kill", "freeze"])
    def test_what_was_not_confirmed_goes_to_the_next_leader_in_order(self, world: World, how: str) -> None:
        topic = world.topic()
        publish(world, topic, 3)
        world.loses_confirms = True
        publish(world, topic, 2)  # stored, but the confirms are lost
        getattr(world, how)("b")
        flights = publish(world, topic, 5)
        world.loses_confirms = False
        world.run(1_700)
        assert not any(flight.done for flight in flights)
        world.elect("c", 2, known_to="c")
        world.run(NOTICED_MS)
        assert all(flight.done for flight in flights)
        assert [sequence for _, sequence in world.log] == list(range(1, 11))
        world.thaw("b")
        world.run(3_000)
        assert len(world.log) == 10
        assert not topic.writers[0].flights

    def test_an_idle_consumer_finds_the_new_leader(self, world: World) -> None:
        subscribe(world)
        world.freeze("b")
        world.run(1_700)
        world.elect("c", 2, known_to="ac")
        world.run(1_000)
        assert len(world.subscribed["c"]) == 1

    def test_a_new_leader_is_found_though_the_home_is_the_node_that_fell(self) -> None:
        world = World()
        world.elect("a", 1)
        topic = world.topic()
        publish(world, topic)
        world.freeze("a")
        (flight,) = publish(world, topic)
        world.run(1_700)
        world.elect("b", 2)
        world.run(NOTICED_MS)
        assert flight.done

    def test_a_worker_that_was_left_is_let_go(self, world: World) -> None:
        publish(world, world.topic())
        world.elect("c", 2)
        publish(world, world.session.publishing.topics["t"])
        world.run(300)
        assert worker("b") not in world._wanted

    def test_a_leader_at_the_same_place_in_a_later_term_is_a_new_one(self, world: World) -> None:
        subscription = subscribe(world)
        deliver(world, subscription, "b", 0, 3, 1)
        world.elect("b", 4)
        world.session.links.learn(Route(SHARD, 4, worker("b")))
        deliver(world, subscription, "b", 3, 3, 1)
        world.run(300)
        (again,) = world.subscribed["b"]
        assert again.holding == [(PARTITION, 0, 3)]

    def test_requests_are_not_asked_twice_because_a_term_was_not_known(self, world: World) -> None:
        world.exchange()
        world.nodes["b"].leads = 7
        call = world.session.calls.ask(CreateTopic("x"), SHARD)
        world.run(100)
        publish(world, world.topic())
        world.run(300)
        assert len(world.got(CreateTopic)) == 1
        assert not call.done

    def test_a_request_that_is_asked_again_says_the_same_key(self, world: World) -> None:
        """So the next leader knows whether it was done."""
        world.exchange()
        calls = [world.session.calls.ask(CreateTopic("x"), SHARD) for _ in range(2)]
        world.run(100)
        world.kill("b")
        world.elect("c", 2)
        world.run(NOTICED_MS)
        first, other, again, other_again = (message.idempotency_key for message in world.got(CreateTopic))
        assert first.startswith(world.session.links.session)
        assert (again, other_again) == (first, other)
        assert first != other
        assert len({call.request_id for call in calls}) == 2

    def test_a_leader_that_resigns_tells_its_subscribers(self, world: World) -> None:
        subscription = subscribe(world)
        world.elect("c", 2, known_to="bc")
        world.tell(
            worker("b"), RefusedMessage("not_leader", "led elsewhere", endpoint=worker("c")), SHARD, 0, 2
        )
        world.exchange()
        assert len(world.subscribed["c"]) == 1
        world.elect("c", 3)
        world.tell(worker("c"), RefusedMessage("not_leader", "led elsewhere"), SHARD, 0, 2)
        world.run(100)
        assert len(world.subscribed["c"]) == 1
        assert subscription.parts[0].subscribed

    def test_quiet_consumers_look_around_now_and_then(self, world: World) -> None:
        subscribe(world)
        world.elect("c", 2)
        world.run(6_000)
        assert len(world.subscribed["c"]) == 1


class TestOldLeaders:
    def test_they_confirm_and_deliver_nothing(self, world: World) -> None:
        topic, subscription = world.topic(), subscribe(world)
        world.freeze("b")
        (flight,) = publish(world, topic)
        world.session.links.learn(Route(SHARD, 5, worker("c")))
        world.tell(worker("b"), Confirm([(flight.request_id, 0, 1, False)]), SHARD, 0, 4)
        assert not flight.done
        deliver(world, subscription, "b", 0, 3, 4)
        assert not subscription.ready

    @pytest.mark.parametrize("answer", ["confirm", "not_leader"])
    def test_what_they_answer_is_asked_again_also_when_they_lead_again(
        self, world: World, answer: str
    ) -> None:
        """No other node was asked meanwhile: the request was sent over the present connection."""
        topic = world.topic()
        publish(world, topic)
        world.freeze("b")
        world.nodes["c"].alive = False
        (flight,) = publish(world, topic)
        call = world.session.calls.ask(CreateTopic("x"), SHARD)
        world.exchange()
        world.session.links.learn(Route(SHARD + 1, 1, worker("b")))
        world.session.links.learn(Route(SHARD, 5, worker("c")))
        refused, confirm = RefusedMessage("not_leader", "no"), Confirm([(flight.request_id, 0, 1, False)])
        world.tell(worker("b"), confirm if answer == "confirm" else refused, SHARD, flight.request_id, 4)
        world.tell(worker("b"), refused, SHARD, call.request_id, 4)
        assert not flight.done
        world.nodes["b"].mail.clear()
        world.thaw("b")
        world.elect("b", 6)
        world.session.links.learn(Route(SHARD, 6, worker("b")))
        world.run(NOTICED_MS)
        assert flight.done
        assert len(world.got(CreateTopic, "b")) == 1

    def test_their_refusals_do_not_count(self, world: World) -> None:
        topic = world.topic()
        publish(world, topic, 3)
        world.freeze("b")
        world.nodes["c"].frozen = True
        (flight,) = publish(world, topic)
        world.session.links.learn(Route(SHARD, 5, worker("c")))
        world.tell(
            worker("b"), RefusedMessage("out_of_sequence", "a gap", detail=1), SHARD, flight.request_id, 4
        )
        assert (flight.done, flight.error, flight.sequence) == (False, None, 4)

    def test_what_a_leader_could_not_confirm_any_more_may_be_stored(self, world: World) -> None:
        """Somebody who has forgotten the producer must not get it under another one."""
        topic = world.topic()
        publish(world, topic, 3)
        world.freeze("b")
        (flight,) = publish(world, topic)
        world.elect("c", 2, known_to="c")
        world.log.clear()
        world.tell(
            worker("b"),
            RefusedMessage("not_leader", "gone", endpoint=worker("c")),
            SHARD,
            flight.request_id,
            2,
        )
        world.exchange()
        assert isinstance(flight.error, NotConfirmed)
        assert world.log == []


class TestConsumers:
    def test_they_say_what_they_hold_and_ack_again_behind_it(self, world: World) -> None:
        subscription, consuming = subscribe(world), world.session.consuming
        deliver(world, subscription, "b", 0, 10, 1)
        (piece,) = consuming.take(subscription, 6)
        world.freeze("b")
        consuming.ack(piece.held, 0, 2)
        consuming.flush()
        world.exchange()
        consuming.ack(piece.held, 2, 4)
        world.run(1_700)
        world.elect("c", 2)
        world.seen.clear()
        world.run(NOTICED_MS)
        (asked,) = world.subscribed["c"]
        assert asked.holding == [(PARTITION, 0, 10)]
        assert world.got(Subscribe, "c")
        assert [where for where, _ in world.acked] == ["c", "c"]
        assert sorted(each for _, ack in world.acked for each in ack.ranges) == [
            (PARTITION, 0, 2),
            (PARTITION, 2, 4),
        ]
        assert consuming.warnings == []

    def test_acks_wait_for_a_subscription_that_is_refused_at_first(self, world: World) -> None:
        subscription, consuming = subscribe(world), world.session.consuming
        deliver(world, subscription, "b", 0, 5, 1)
        (piece,) = consuming.take(subscription, 5)
        world.elect("c", 2)
        world.nodes["c"].leads = 0  # elected, and does not serve yet
        world.nodes["c"].knows = None
        consuming.ack(piece.held, 0, 5)
        world.run(200)
        assert world.got(Ack, "c") == []
        world.elect("c", 2)
        world.run(600)
        assert [where for where, _ in world.acked] == ["c"]
        assert consuming.warnings == []

    def test_leases_are_extended_at_the_new_leader(self, world: World) -> None:
        subscription, consuming = subscribe(world), world.session.consuming
        deliver(world, subscription, "b", 0, 5, 1)
        consuming.take(subscription, 5)
        world.run(14_000)
        world.freeze("b")
        world.run(1_700)
        world.elect("c", 2)
        world.run(1_000)
        (extend,) = world.got(Extend, "c")
        assert isinstance(extend, Extend)
        assert extend.ranges == [(PARTITION, 0, 5)]

    def test_an_atomic_step_goes_behind_the_subscription(self, world: World) -> None:
        topic, subscription = world.topic(), subscribe(world)
        deliver(world, subscription, "b", 0, 5, 1)
        (piece,) = world.session.consuming.take(subscription, 5)
        world.freeze("b")
        number = subscription.parts[0].number
        options = Options(None, b"", b"", "", None)
        flight = world.session.publishing.step(
            topic.writers[0], options, b"v", number, [(PARTITION, 0, 1)], lambda done: None
        )
        world.run(1_700)
        world.elect("c", 2)
        world.seen.clear()
        world.run(NOTICED_MS)
        assert flight.done
        kinds = [
            type(message)
            for who, message in world.seen
            if who == "c" and isinstance(message, Publish | Subscribe)
        ]
        assert kinds == [Subscribe, Publish]
        assert piece.held.is_lost(0) is False

    def test_a_consumer_that_leaves_in_a_takeover_has_its_acks_stored(self, world: World) -> None:
        subscription, consuming = subscribe(world), world.session.consuming
        deliver(world, subscription, "b", 0, 5, 1)
        (piece,) = consuming.take(subscription, 5)
        world.freeze("b")
        consuming.ack(piece.held, 0, 5)
        consuming.close(subscription)
        consuming.flush()
        world.run(1_700)
        world.elect("c", 2)
        world.run(NOTICED_MS)
        assert [where for where, _ in world.acked] == ["c"]
        assert world.session.settled
        assert consuming.warnings == []
