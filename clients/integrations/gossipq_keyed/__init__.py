"""Values by key in a topic, for results and counters of task queues."""

from gossipq_keyed.topic import KeyedTopic

__all__ = ["KeyedTopic"]
