"""Every bound and every default, once. Relations between them are asserted at import."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECOND_MS, MINUTE_MS, HOUR_MS = 1_000, 60_000, 3_600_000
DAY_MS = 24 * HOUR_MS

# numbers that others say
NUMBER_MAX = 2**62  #: of an index, a term, a time: one more still fits 63 bits, on the wire and on disk
#: terms that a copy takes over at a time; each is an election, so nobody is honestly so far ahead
TERM_LEAP_MAX = 2**20
ROSTER_VERSION_MAX = 2**48  #: a log index of the meta shard

# names and records
NAME_BYTES_MAX = 200
VALUE_BYTES_MAX = 16 * MIB
KEY_BYTES_MAX = 4 * KIB
HEADERS_BYTES_MAX = 64 * KIB
ROUTE_BYTES_MAX = 255
ID_BYTES_MAX = 1 * KIB
IDEMPOTENCY_KEY_BYTES_MAX = 64

# batches and frames
BATCH_RECORDS_MAX = 4_096  #: what a packer seals; a node takes any count up to BATCH_RECORDS_HARD_MAX
BATCH_RECORDS_HARD_MAX = 65_536
BATCH_BYTES_MAX = 256 * KIB  #: a larger record travels alone
BATCH_BYTES_HARD_MAX = VALUE_BYTES_MAX + KEY_BYTES_MAX + HEADERS_BYTES_MAX + 4 * KIB
CONTROL_BYTES_MAX = 1 * MIB
FRAME_BYTES_MAX = BATCH_BYTES_HARD_MAX + CONTROL_BYTES_MAX
DELIVER_BYTES_MAX = 1 * MIB  #: batches joined into one DELIVER

# topics
SHARDS = 32  #: per cluster, chosen at founding
SHARDS_MAX = 1_024
PARTITIONS_MAX = 1_024
TOPICS_MAX = 10_000
PARTITION_MEMORY_BYTES = 1_024  #: of one without records, about
RETENTION_MS = 7 * DAY_MS

# delivery
LEASE_MS = 30 * SECOND_MS
LEASE_TOTAL_MS_MAX = 12 * HOUR_MS
ATTEMPTS_MAX = 10  #: failures after which a record becomes a dead letter
ATTEMPTS_HARD_MAX = 1_000_000
BACKOFF_MS = (1 * SECOND_MS, 5 * SECOND_MS, 30 * SECOND_MS, 2 * MINUTE_MS, 10 * MINUTE_MS)
BACKOFF_STEPS_MAX = 32
PARKED_HARD_MAX = 100_000_000
PARKED_MAX = 100_000  #: records of a group and partition that wait behind others of their key
ERROR_BYTES_MAX = 2 * KIB  #: kept of what a consumer said of a failure
DEAD_LIST_HARD_MAX = 1_000
DEAD_LIST_MAX = 100  #: dead letters in one answer
LIST_ROWS_MAX = 1_000  #: topics, sessions, or rows of counters in one answer; more come in the next
LIST_BYTES_MAX = 512 * KIB  #: of them
SESSION_SHOWN_BYTES = 8  #: of a session's name, where clients are listed: who reads it cannot greet as it
SUBSCRIPTIONS_LISTED_MAX = 256  #: of one session, where clients are listed
SURVEY_ROWS_MAX = 4_096  #: looked at for one page of an export
VIRTUAL_TARGETS_MAX = 64
DEDUP_HARD_MS = 7 * DAY_MS
DEDUP_HARD_COUNT = 100_000_000
DEDUP_MS = 10 * MINUTE_MS
DEDUP_COUNT = 1_000_000
CREDIT_RECORDS = 1_000
CREDIT_BYTES = 8 * MIB
RESOLVE_PATTERNS_MAX = 64  #: in one question
RANGES_MAX = 16_384  #: in one ACK, and held by who subscribes again
ID_RECORDS_MAX = 32_768  #: in a batch with ids: its CONFIRM may have to name each
MOVED_RANGES_MAX = 1_024  #: in one NACK, EXTEND or STARTED: each may cost a step of its own
CREDIT_MAX = 2**40  #: records in one loan
#: lent by one subscription: what a node may have to keep for a consumer that does not read
CREDIT_BYTES_MAX = 64 * MIB
IN_FLIGHT_MAX = 20_000  #: records above a group's cursor, per partition
IN_FLIGHT_HARD_MAX = 1_000_000
DELAY_MS_MAX = 3_650 * DAY_MS
LEASE_LOG_MS = 50  #: lazily logged state is on disk at the latest after this

UNEVEN_MS = 1 * SECOND_MS  #: so long a consumer may have too much while another one has nothing

# producers
PRODUCER_REPEATS = 128  #: confirmed sequences that can still be answered with their old offset
PRODUCER_IDLE_MS = 24 * HOUR_MS
PUBLISH_WINDOW_BYTES = 32 * MIB  #: unconfirmed bytes a client may have at one leader

# sessions
SESSION_SILENCE_MS = 5 * SECOND_MS
SESSION_ABSENCE_MS = SECOND_MS  #: a client whose last connection ended may come back by another one
PING_MS = 1 * SECOND_MS

# operating
KICK_MS = 30 * SECOND_MS  #: a session that an operator ended is not greeted for so long
KICK_MS_MAX = DAY_MS
GROWTH_MINUTES_MS = 6 * HOUR_MS  #: roll-ups of minutes are kept for so long,
GROWTH_HOURS_MS = 7 * DAY_MS  #: and those of hours
ALARM_LAG_MAX = 2**53
TIMING_BOUNDS_US = (
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    5_000_000,
)

# one turn of the loop
TURN_MESSAGES_MAX = 256
UNREAD_BYTES_MAX = 8 * MIB  #: answers to a connection that it has not taken; then its questions are refused
UNREAD_BYTES_HARD_MAX = 256 * MIB  #: of all that is sent to it; then records go to others
SLICES_PER_TURN = 4_096  #: that one turn of a shard looks at to hand out, and as many for readers
ENCLOSED_BYTES_PER_TURN = 32 * MIB  #: of batches in the answers of one turn of a shard
CONNECTIONS_MAX = 8_192  #: to one process of a node, about 35 KiB each
TURN_BYTES_MAX = 4 * MIB
INTAKE_BYTES_MAX = 256 * MIB  #: of batches of all clients that wait for their turn in one worker
FAILURES_PER_TURN = 1_024  #: failed attempts and expired records that one turn of a shard makes entries of
BURIED_BYTES_PER_TURN = 1 * MIB  #: of the batches that dead letters keep, in one turn of a shard
LETTERS_PER_TURN = 1_024  #: rows of dead letters that one turn of a shard replays, purges or counts
LETTER_BYTES_PER_TURN = 16 * MIB  #: of the batches that they hold
LETTER_JOBS_MAX = 64  #: replays and purges that wait for their turns in one shard
#: of a shard that wait for other copies; then publishes are refused for a moment
UNAPPLIED_BYTES_MAX = 64 * MIB
SESSIONS_ENDED_PER_TURN = 100  #: of those that fell silent, or did not come back
RECENT_BYTES_MAX = 16 * MIB  #: newest batches kept in memory, per worker
REPLICATE_BYTES_MAX = 1 * MIB

# copies of a shard; boot time
HEARTBEAT_MS = 550  #: so that three idle nodes stay below 50 messages a second
LEADER_LEASE_MS = 1_200  #: from the sending of the newest round that a majority answered
ELECTION_MS = 1_500  #: silence of a leader before anybody votes for another
ELECTION_FIRST_MS = 300  #: at random after it: the first voter in order
ELECTION_REST_MS = 1_200  #: and after that: the others
CAMPAIGN_AGAIN_MS = 250  #: pause after a campaign that found no majority; it doubles
CAMPAIGN_AGAIN_MS_MAX = 2_000
TRANSFER_READY_MS = (
    500  #: a hand-over: the next leader stores an entry, and then everything, each within so long
)
TRANSFER_MS = 750  #: and is elected within so long after it was told; else the leader stands again itself
COMMIT_TOLD_MS = 50  #: a follower hears what is committed with the next entry, or after this
IN_FLIGHT_APPENDS_MAX = 64  #: unanswered, to one follower
IN_FLIGHT_APPEND_BYTES_MAX = 8 * MIB
LOG_LAG_ROWS = 100_000  #: kept for a copy that is behind; then it needs a snapshot
SNAPSHOT_PART_BYTES = 512 * KIB
SNAPSHOT_ROWS_PER_TURN = 10_000  #: of the state, read in one turn: about 5 ms
SNAPSHOT_BYTES_PER_S = 64 * MIB  #: to one copy
COPIES_MAX = 7
COPIES = 3
MEMBERS_MAX = 64
BUNDLE_BYTES_MAX = 2 * MIB  #: of what one turn says to another process; more goes in several
OPTIONS_FOUNDED = ("cluster.name", "cluster.shards")  #: of [cluster]: settled when the cluster is founded
#: in force as soon as they are changed; others at each node's next start
OPTIONS_AT_ONCE = ("cluster.replace_ms",)
FRESH_MS = 3 * SECOND_MS  #: a sign of life, or a figure, that is older is stale, and said to be
#: a copy that has not answered its leader for so long is away: leaders hear them twice a second
SILENT_COPY_MS = 2 * SECOND_MS
CLOCK_OFF_MS = 2_000  #: a wall clock that is further off the time of its cluster is told
#: a roster that this node's own copy of the meta shard has not got within so long is given up
ROSTER_DOUBT_MS = 10 * SECOND_MS
ROSTER_REFUSED_MS = MINUTE_MS  #: and not taken from others again for so long
VIEW_AGAIN_MS = 10 * SECOND_MS  #: what has not changed is said again
STEER_MS = 250  #: a leader looks at who should keep copies of its shard
HAND_BACK_MS = 10 * SECOND_MS  #: the copy that should lead has kept up for so long
#: a copy that hears no leader for so long asks whether it is still one, or lets go of its rows
STRAY_MS = 30 * SECOND_MS
STRAY_ROWS = 256  #: that it lets go of in one turn
REPLACE_MS = 30 * MINUTE_MS  #: a node that is silent for so long is lost: its copies are rebuilt elsewhere

# store
MAP_BYTES = 256 * GIB
MAP_BYTES_MAX = 1 << 46  #: half of what a process can address
#: of the journal of a store: then LMDB commits. Never more than that: a shorter file is one that was cut
JOURNAL_BYTES = 4 * MIB
JOURNAL_TURN_BYTES = (
    256 * KIB
)  #: a larger turn is committed by LMDB at once: its batches would be written twice
JOURNAL_MAP_BYTES = 4 * JOURNAL_BYTES  #: by which a map grows that its journal does not fit
#: puts and deletes until LMDB commits, and bytes of them: so many are some milliseconds of it, which all wait
#: for
JOURNAL_ROWS, JOURNAL_ROWS_BYTES = 4_000, MIB
MAP_FULL_PERCENT = 85
DISK_RESERVE_PERCENT = 5
DISK_RESERVE_BYTES = 256 * MIB

#: of a worker or frontdoor; nobody bounds a message whose frames never end
PROCESS_MEMORY_BYTES_MAX = 4 * GIB
PROCESS_MEMORY_BYTES_MIN = 128 * MIB  #: with half of that it ends under a single busy client

# ports, counted from the frontdoor's
PORT = 7700
CLIENT_PORT_STEP = 1  #: worker i binds PORT + 1 + i for clients
FRONTDOOR_PEER_PORT_STEP = 40  #: the frontdoor binds PORT for clients and PORT + 40 for its own workers
PEER_PORT_STEP = 41  #: worker i binds PORT + 41 + i for peers
WORKERS_MAX = 39
GOSSIP_PORT_STEP = 90  #: the Serf agent of a node binds PORT + 90, TCP and UDP
ADMIN_PORT_STEP = 80  #: metrics and health, unless told otherwise
#: frontdoor and workers bind their ports for clients once more, so many above: encrypted
DOOR_PORT_STEP = 100
DOOR_KEY_MS = (
    100  #: an encrypted port is dialled by one key for so long at least, before the next one is tried
)
PORTS_ABOVE = DOOR_PORT_STEP + WORKERS_MAX  #: of a node, above its first one

assert BATCH_BYTES_MAX < BATCH_BYTES_HARD_MAX < FRAME_BYTES_MAX < 2**31, "column offsets are int32"
assert BATCH_RECORDS_MAX <= BATCH_RECORDS_HARD_MAX
assert PING_MS * 3 < SESSION_SILENCE_MS < LEASE_MS < LEASE_TOTAL_MS_MAX
assert LEASE_LOG_MS < PING_MS
assert 2 * HEARTBEAT_MS < LEADER_LEASE_MS < ELECTION_MS, "a lease ends before anybody else is elected"
assert PUBLISH_WINDOW_BYTES < INTAKE_BYTES_MAX < PROCESS_MEMORY_BYTES_MAX // 4
assert LIST_BYTES_MAX <= CONTROL_BYTES_MAX // 2, "the last row of a page may be large"
assert DELIVER_BYTES_MAX < CREDIT_BYTES <= CREDIT_BYTES_MAX
assert CREDIT_RECORDS <= IN_FLIGHT_MAX <= IN_FLIGHT_HARD_MAX
assert CLIENT_PORT_STEP + WORKERS_MAX <= FRONTDOOR_PEER_PORT_STEP < PEER_PORT_STEP
assert PEER_PORT_STEP + WORKERS_MAX <= GOSSIP_PORT_STEP
assert PEER_PORT_STEP + WORKERS_MAX <= ADMIN_PORT_STEP
assert max(GOSSIP_PORT_STEP, ADMIN_PORT_STEP) < DOOR_PORT_STEP
