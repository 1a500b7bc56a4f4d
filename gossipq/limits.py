"""Every bound and default. Relations between them are asserted at import."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECOND_MS, MINUTE_MS, HOUR_MS = 1_000, 60_000, 3_600_000
DAY_MS = 24 * HOUR_MS

# numbers that other nodes and clients send
#: of an index, term or time; adding one still fits 63 bits, on the wire and on disk
NUMBER_MAX = 2**62
#: a copy accepts at most this jump of the term; each term is an election, so a larger jump is a
#: fault
TERM_LEAP_MAX = 2**20
ROSTER_VERSION_MAX = 2**48  #: a log index of the meta shard

# names and records
NAME_BYTES_MAX = 200
VALUE_BYTES_MAX = 16 * MIB
KEY_BYTES_MAX = 4 * KIB
HEADERS_BYTES_MAX = 64 * KIB
ROUTE_BYTES_MAX = 255
ID_BYTES_MAX = 1 * KIB
FLOW_BYTES_MAX = 64
PRIORITY_MAX = 9  #: of a record; the lowest is 0
PRIORITY = 5  #: of a record that asks for none
FLOW_WEIGHT_MAX = 1_000
FLOW_WEIGHTS_MAX = 1_000  #: flows with a weight of their own, in a group
IDEMPOTENCY_KEY_BYTES_MAX = 64

# batches and frames
#: a packer seals at most this many; a node accepts up to BATCH_RECORDS_HARD_MAX
BATCH_RECORDS_MAX = 4_096
BATCH_RECORDS_HARD_MAX = 65_536
BATCH_BYTES_MAX = 256 * KIB  #: a larger record gets a batch of its own
BATCH_BYTES_HARD_MAX = VALUE_BYTES_MAX + KEY_BYTES_MAX + HEADERS_BYTES_MAX + 4 * KIB
CONTROL_BYTES_MAX = 1 * MIB
FRAME_BYTES_MAX = BATCH_BYTES_HARD_MAX + CONTROL_BYTES_MAX
DELIVER_BYTES_MAX = 1 * MIB  #: total of the batches in one DELIVER

# topics
SHARDS = 32  #: of a cluster, chosen when it is founded
SHARDS_MAX = 1_024
PARTITIONS_MAX = 1_024
TOPICS_MAX = 10_000
SCHEDULES_MAX = 100_000  #: of a shard
SCHEDULE_NAME_BYTES_MAX = 128
SCHEDULE_EVERY_MS_MIN = 1_000
TICKS_KEPT = 10  #: last ticks that a schedule remembers
TICKS_NEXT = 5  #: next ticks that are told
RESULT_BYTES_MAX = 64 * KIB  #: of the result of one job
RESULT_KIND_BYTES_MAX = 32
RESULT_KEPT_MS_MAX = 365 * DAY_MS
PROGRESS_TEXT_BYTES_MAX = 256
PROGRESS_KEPT_MS = DAY_MS  #: after the last report of a job
JOB_WAITERS_MAX = 10_000  #: requests that wait for the end of jobs, in one shard
JOB_WAIT_MS_MAX = MINUTE_MS  #: for which one such request may wait
JOIN_PARTS_MAX = 500  #: jobs that one record waits for
JOINS_MAX = 10_000  #: records of a shard that wait for jobs
JOIN_PARTS_OPEN_MAX = 200_000  #: jobs that these records wait for, in all
JOB_WATCHES_MAX = 400_000  #: jobs of a shard whose ends leaders wait for
PARTITION_MEMORY_BYTES = 1_024  #: of a partition without records, about
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
ERROR_BYTES_MAX = 2 * KIB  #: of the error text that a consumer reported with a failure
DEAD_LIST_HARD_MAX = 1_000
DEAD_LIST_MAX = 100  #: dead letters in one answer
#: topics, sessions, or rows of counters in one answer; the next answer has more
LIST_ROWS_MAX = 1_000
LIST_BYTES_MAX = 512 * KIB  #: of those rows
#: of a session's name in lists of clients: too few to greet as that session
SESSION_SHOWN_BYTES = 8
SUBSCRIPTIONS_LISTED_MAX = 256  #: subscriptions listed of one session
SURVEY_ROWS_MAX = 4_096  #: rows examined for one page of an export
VIRTUAL_TARGETS_MAX = 64
DEDUP_HARD_MS = 7 * DAY_MS
DEDUP_HARD_COUNT = 100_000_000
DEDUP_MS = 10 * MINUTE_MS
DEDUP_COUNT = 1_000_000
CREDIT_RECORDS = 1_000
CREDIT_BYTES = 8 * MIB
RESOLVE_PATTERNS_MAX = 64  #: patterns in one RESOLVE
RANGES_MAX = 16_384  #: in one ACK, and in the list of held ranges of a SUBSCRIBE
UNIQUES_MAX = 1 << 20  #: unique names of a shard, of records that are not done
ID_RECORDS_MAX = 32_768  #: in a batch with ids: its CONFIRM may have to name each record
MOVED_RANGES_MAX = 1_024  #: in one NACK, EXTEND or STARTED: each can cost a step of its own
CREDIT_MAX = 2**40  #: records of credit that one message can grant
#: credit of one subscription: a node may have to buffer this for a consumer that does not read
CREDIT_BYTES_MAX = 64 * MIB
IN_FLIGHT_MAX = 20_000  #: records above a group's cursor, per partition
IN_FLIGHT_HARD_MAX = 1_000_000
DELAY_MS_MAX = 3_650 * DAY_MS
LEASE_LOG_MS = 50  #: state that is logged lazily is on disk after this time at the latest

#: records that a consumer of a shared group may hold before its handlers start them: at first,
PREFETCH_START = 64
PREFETCH_MIN = 16  #: at least,
PREFETCH_MAX = 4_096  #: and with this many, any number within its credit
PREFETCH_GROWTH = 4  #: the factor by which that grows at a time, and the seconds of work that it covers
UNEVEN_MS = 1 * SECOND_MS  #: a consumer can hold too much for this long while another one is idle

# producers
PRODUCER_REPEATS = 128  #: confirmed sequences for which a repeat still gets its old offset
PRODUCER_IDLE_MS = 24 * HOUR_MS
PUBLISH_WINDOW_BYTES = 32 * MIB  #: unconfirmed bytes of a client at one leader

# sessions
SESSION_SILENCE_MS = 5 * SECOND_MS
SESSION_ABSENCE_MS = SECOND_MS  #: a client whose last connection ended has this long to reconnect
PING_MS = 1 * SECOND_MS

# operating
KICK_MS = 30 * SECOND_MS  #: a session that an operator ended is refused HELLO for this long
KICK_MS_MAX = DAY_MS
GROWTH_MINUTES_MS = 6 * HOUR_MS  #: roll-ups of minutes are kept for this long
GROWTH_HOURS_MS = 7 * DAY_MS  #: roll-ups of hours are kept for this long
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
#: answers to a connection that it has not read; above this, its questions are refused
UNREAD_BYTES_MAX = 8 * MIB
#: everything sent to a connection that it has not read; above this, records go to others
UNREAD_BYTES_HARD_MAX = 256 * MIB
#: slices that one turn of a shard examines for delivery to groups, and as many for readers
SLICES_PER_TURN = 4_096
ENCLOSED_BYTES_PER_TURN = 32 * MIB  #: batches in the answers of one turn of a shard
CONNECTIONS_MAX = 8_192  #: to one process of a node, about 35 KiB each
TURN_BYTES_MAX = 4 * MIB
INTAKE_BYTES_MAX = 256 * MIB  #: batches of all clients that wait for their turn in one worker
FAILURES_PER_TURN = 1_024  #: failed attempts and expired records that one turn of a shard logs
BURIED_BYTES_PER_TURN = 1 * MIB  #: batches kept by dead letters, in one turn of a shard
LETTERS_PER_TURN = 1_024  #: rows of dead letters that one turn of a shard replays, purges or counts
LETTER_BYTES_PER_TURN = 16 * MIB  #: batches of those dead letters
LETTER_JOBS_MAX = 64  #: replays and purges that wait for their turns in one shard
#: bytes of a shard that wait for other copies; above this, publishes are refused for a moment
UNAPPLIED_BYTES_MAX = 64 * MIB
SESSIONS_ENDED_PER_TURN = 100  #: sessions that fell silent or did not reconnect
RECENT_BYTES_MAX = 16 * MIB  #: newest batches kept in memory, per worker
REPLICATE_BYTES_MAX = 1 * MIB

# copies of a shard; boot time
HEARTBEAT_MS = 550  #: so that three idle nodes stay below 50 messages a second
LEADER_LEASE_MS = 1_200  #: from the sending of the newest round that a majority answered
ELECTION_MS = 1_500  #: a voter votes for another copy only after this silence of the leader
ELECTION_FIRST_MS = 300  #: random delay after ELECTION_MS for the first voter in order
ELECTION_REST_MS = 1_200  #: random delay after that for the other voters
CAMPAIGN_AGAIN_MS = 250  #: pause after a campaign without a majority; it doubles
CAMPAIGN_AGAIN_MS_MAX = 2_000
#: a hand-over: the next leader must store one entry, then all entries, each in this time
TRANSFER_READY_MS = 500
#: the next leader must be elected in this time after it was told, else the old leader stands again
TRANSFER_MS = 750
COMMIT_TOLD_MS = 50  #: a follower learns the commit index with the next entry, or after this time
IN_FLIGHT_APPENDS_MAX = 64  #: unanswered appends to one follower
IN_FLIGHT_APPEND_BYTES_MAX = 8 * MIB
LOG_LAG_ROWS = 100_000  #: rows kept for a copy that is behind; beyond this it needs a snapshot
SNAPSHOT_PART_BYTES = 512 * KIB
SNAPSHOT_ROWS_PER_TURN = 10_000  #: of the state, read in one turn: about 5 ms
SNAPSHOT_BYTES_PER_S = 64 * MIB  #: to one copy
COPIES_MAX = 7
COPIES = 3
MEMBERS_MAX = 64
#: messages of one turn to another process; more are sent in several bundles
BUNDLE_BYTES_MAX = 2 * MIB
#: options of [cluster] that are fixed when the cluster is founded
OPTIONS_FOUNDED = ("cluster.name", "cluster.shards")
#: options that take effect when they are changed; others do so when a node starts
OPTIONS_AT_ONCE = ("cluster.replace_ms",)
FRESH_MS = 3 * SECOND_MS  #: a figure or sign of life older than this is marked as stale
#: a copy silent for this long is away: leaders hear copies twice a second
SILENT_COPY_MS = 2 * SECOND_MS
CLOCK_OFF_MS = 2_000  #: a wall clock further off the cluster's time than this raises an alarm
#: a roster version that this node's own copy of the meta shard lacks is dropped after this time
ROSTER_DOUBT_MS = 10 * SECOND_MS
#: a dropped roster version is not accepted from others again for this long
ROSTER_REFUSED_MS = MINUTE_MS
VIEW_AGAIN_MS = 10 * SECOND_MS  #: unchanged state is sent again after this time
STEER_MS = 250  #: interval at which a leader checks which nodes should keep copies of its shard
#: the preferred leader gets leadership back after it kept up for this long
HAND_BACK_MS = 10 * SECOND_MS
#: a copy without a leader for this long asks whether it is still one, or else deletes its rows
STRAY_MS = 30 * SECOND_MS
STRAY_ROWS = 256  #: rows of a stray copy deleted in one turn
#: a node silent for this long is lost: its copies are rebuilt elsewhere
REPLACE_MS = 30 * MINUTE_MS

# store
MAP_BYTES = 256 * GIB
MAP_BYTES_MAX = 1 << 46  #: half of the address space of a process
#: size of the journal at which LMDB commits; a shorter journal file is one that was cut
JOURNAL_BYTES = 4 * MIB
#: a larger turn is committed by LMDB at once: its batches would be written twice
JOURNAL_TURN_BYTES = 256 * KIB
JOURNAL_MAP_BYTES = 4 * JOURNAL_BYTES  #: a map that its journal does not fit grows by this step
#: puts and deletes, and their bytes, until LMDB commits: some milliseconds that all wait for
JOURNAL_ROWS, JOURNAL_ROWS_BYTES = 4_000, MIB
MAP_FULL_PERCENT = 85
DISK_RESERVE_PERCENT = 5
DISK_RESERVE_BYTES = 256 * MIB

#: of a worker or frontdoor, because ZeroMQ does not bound a message whose frames never end
PROCESS_MEMORY_BYTES_MAX = 4 * GIB
PROCESS_MEMORY_BYTES_MIN = 128 * MIB  #: with half of it, a process is killed by one busy client

# ports, counted from the frontdoor's
PORT = 7700
CLIENT_PORT_STEP = 1  #: worker i binds PORT + 1 + i for clients
#: the frontdoor binds PORT for clients and PORT + 40 for its own workers
FRONTDOOR_PEER_PORT_STEP = 40
PEER_PORT_STEP = 41  #: worker i binds PORT + 41 + i for peers
WORKERS_MAX = 39
GOSSIP_PORT_STEP = 90  #: the Serf agent of a node binds PORT + 90, TCP and UDP
ADMIN_PORT_STEP = 80  #: metrics and health, unless node.admin says otherwise
#: frontdoor and workers bind each port for clients a second time, encrypted, this many above
DOOR_PORT_STEP = 100
DOOR_KEY_MS = (
    #: an encrypted port is dialled with one key for at least this long, before the next is tried
    100
)
PORTS_ABOVE = DOOR_PORT_STEP + WORKERS_MAX  #: ports of a node above its first one

assert BATCH_BYTES_MAX < BATCH_BYTES_HARD_MAX < FRAME_BYTES_MAX < 2**31, "column offsets are int32"
assert BATCH_RECORDS_MAX <= BATCH_RECORDS_HARD_MAX
assert PING_MS * 3 < SESSION_SILENCE_MS < LEASE_MS < LEASE_TOTAL_MS_MAX
assert LEASE_LOG_MS < PING_MS
assert 2 * HEARTBEAT_MS < LEADER_LEASE_MS < ELECTION_MS, "a lease ends before anybody else is elected"
assert PUBLISH_WINDOW_BYTES < INTAKE_BYTES_MAX < PROCESS_MEMORY_BYTES_MAX // 4
assert LIST_BYTES_MAX <= CONTROL_BYTES_MAX // 2, "the last row of a page may be large"
assert DELIVER_BYTES_MAX < CREDIT_BYTES <= CREDIT_BYTES_MAX
assert PREFETCH_MIN <= PREFETCH_START < PREFETCH_MAX < IN_FLIGHT_MAX
assert CREDIT_RECORDS <= IN_FLIGHT_MAX <= IN_FLIGHT_HARD_MAX
assert CLIENT_PORT_STEP + WORKERS_MAX <= FRONTDOOR_PEER_PORT_STEP < PEER_PORT_STEP
assert PEER_PORT_STEP + WORKERS_MAX <= GOSSIP_PORT_STEP
assert PEER_PORT_STEP + WORKERS_MAX <= ADMIN_PORT_STEP
assert max(GOSSIP_PORT_STEP, ADMIN_PORT_STEP) < DOOR_PORT_STEP
