"""What users write, checked and turned into what the wire carries: durations, options, policies, names of
records. Pure."""

from gossipq_client.values import inputs, outcomes, payloads, refs
from gossipq_client.values.credentials import (
    NO_CREDENTIALS,
    Credentials,
    credentials_of,
    file_text,
    text_of,
)
from gossipq_client.values.growth import series
from gossipq_client.values.inputs import duration_ms, start_of
from gossipq_client.values.outcomes import (
    GIVEN_BACK,
    Outcome,
    Reject,
    Retry,
    TimeLimitExceeded,
    Undecodable,
    failed,
)
from gossipq_client.values.policies import (
    Backoff,
    GroupPolicy,
    TopicPolicy,
    as_asked,
    group_options,
    topic_options,
)
from gossipq_client.values.refs import Address, address
from gossipq_client.values.spooled import Spooled, spooled
from gossipq_client.values.terms import (
    NOTHING,
    PLAIN,
    WHILE_CONFIRMED,
    Common,
    ListOptions,
    Many,
    Options,
    PublishOptions,
    Terms,
    columns,
    delay_of,
    key_column,
    list_options,
    own_options,
    publish_options,
    terms_of,
)

__all__ = [
    "GIVEN_BACK",
    "NOTHING",
    "NO_CREDENTIALS",
    "PLAIN",
    "WHILE_CONFIRMED",
    "Address",
    "Backoff",
    "Common",
    "Credentials",
    "GroupPolicy",
    "ListOptions",
    "Many",
    "Options",
    "Outcome",
    "PublishOptions",
    "Reject",
    "Retry",
    "Spooled",
    "Terms",
    "TimeLimitExceeded",
    "TopicPolicy",
    "Undecodable",
    "address",
    "as_asked",
    "columns",
    "credentials_of",
    "delay_of",
    "duration_ms",
    "failed",
    "file_text",
    "group_options",
    "inputs",
    "key_column",
    "list_options",
    "outcomes",
    "own_options",
    "payloads",
    "publish_options",
    "refs",
    "series",
    "spooled",
    "start_of",
    "terms_of",
    "text_of",
    "topic_options",
]
