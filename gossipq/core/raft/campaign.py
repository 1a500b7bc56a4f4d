"""Elections: how a replica without a leader stands and votes (Raft thesis 3.4, 9.6).

`step` takes every consensus message, also those of a leader, and passes it to the code that decides
about it.
"""

from collections.abc import Sequence

from gossipq.core.raft import voters
from gossipq.core.raft.replica import CANDIDATE, FOLLOWER, LEADER, PRE_CANDIDATE, Replica
from gossipq.core.storage import Entry
from gossipq.peer_messages import Append, Appended, TimeoutNow, Vote, VoteRequest
from gossipq.types import Index, Term

Consensus = Append | Appended | VoteRequest | Vote | TimeoutNow


def step(replica: Replica, term: Term, message: Consensus, entries: Sequence[Entry] = ()) -> Index | None:
    """Handle a message of a sender in `term`. An Append comes with its entries.

    Returns the index from which the log has changed, or None. Raises ProtocolError, CorruptLog.
    """
    match message:
        case Append():
            return replica.on_append(term, message, list(entries))
        case Appended():
            if replica.observe(term):
                replica.on_appended(message)
        case VoteRequest():
            on_vote_request(replica, message)
        case Vote():
            on_vote(replica, term, message)
        case TimeoutNow():
            on_timeout_now(replica, term, message)
    return None


def tick(replica: Replica) -> None:
    """Advance timers: start a pre-vote when the leader has been silent."""
    if replica.role == LEADER:
        if replica.progress:
            # a new term makes a late TIMEOUT_NOW of the failed hand-over void
            if replica.handing_failed():
                stand(replica, pre=False, transfer=True)
            else:
                replica.keep_leading()
        return
    due_ms = replica.election.due_ms
    if due_ms is None:
        replica.election.heard(replica.now_ms, first=False)  # just opened
    elif replica.now_ms >= due_ms:
        if may_stand(replica):
            stand(replica, pre=True)
        else:
            replica.election.voted(replica.now_ms)


def deadline_ms(replica: Replica) -> int | None:
    if replica.role == LEADER:
        return replica.deadline_ms
    due_ms = replica.election.due_ms
    return replica.now_ms if due_ms is None else due_ms if may_stand(replica) else None


def may_stand(replica: Replica) -> bool:
    """True for a voter of its own voter list that has all records and a complete state."""
    return replica.electable and not replica.hollow


def stand(replica: Replica, pre: bool, transfer: bool = False) -> None:
    """Start a campaign: ask every voter. Term and own vote are stored before the messages are
    sent.
    """
    replica.stand(PRE_CANDIDATE if pre else CANDIDATE)
    replica.election.stood(replica.now_ms, replica.me)
    if not pre:
        replica.enter(replica.hard.term + 1, replica.me)
    # a pre-vote asks about the next term without entering it, so a copy that was cut off ends no leadership
    term = replica.hard.term + pre
    request = VoteRequest(
        candidate=replica.me,
        term=term,
        last_term=replica.log.term,
        last_index=replica.log.last,
        pre=pre,
        transfer=transfer,
    )
    for voter in replica.config.voters:
        if voter != replica.me:
            replica.say(voter, request)
    _count(replica, pre)


def _count(replica: Replica, pre: bool) -> None:
    """With a majority of the voters of its own list, go from pre-vote to vote, or from vote to
    leader.
    """
    if len(replica.election.votes.intersection(replica.config.voters)) < voters.quorum_size(
        replica.config.voters
    ):
        return
    if pre:
        stand(replica, pre=False)
    else:
        replica.lead()


def up_to_date(replica: Replica, request: VoteRequest) -> bool:
    """True if the candidate's log is at least as new: last term first, then last index (Raft
    3.6.1).
    """
    return (request.last_term, request.last_index) >= (replica.log.term, replica.log.last)


def on_vote_request(replica: Replica, request: VoteRequest) -> None:
    """Answer a candidate. Raises ProtocolError."""
    replica.check_term(request.term)
    if not request.transfer and (replica.role == LEADER or replica.election.hears(replica.now_ms)):
        # its term is ignored too: a copy that was cut off would otherwise end every leadership
        granted = False
    elif request.pre:
        granted = request.term > replica.hard.term and up_to_date(replica, request)
        if replica.role == FOLLOWER and not up_to_date(replica, request):
            replica.election.asked_by_less(replica.now_ms)
    else:
        # one vote in a term, stored before the answer leaves: so a term has one leader at most
        granted = replica.observe(request.term) and replica.hard.vote in ("", request.candidate)
        granted = granted and up_to_date(replica, request)
        if granted and not replica.hard.vote:
            replica.enter(replica.hard.term, request.candidate)
        if granted:
            replica.election.voted(replica.now_ms)
    replica.say(request.candidate, Vote(replica.me, request.term, granted, request.pre))


def on_vote(replica: Replica, term: Term, vote: Vote) -> None:
    """Count a vote. `term` is the voter's own. Its clock is recorded even if it refused."""
    if replica.role != FOLLOWER:
        replica.time.heard_copy(vote.voter, vote)
    if not vote.granted:
        replica.observe(term)
    elif vote.term == replica.hard.term + vote.pre and replica.role == (
        PRE_CANDIDATE if vote.pre else CANDIDATE
    ):
        replica.election.votes.add(vote.voter)
        _count(replica, vote.pre)


def on_timeout_now(replica: Replica, term: Term, message: TimeoutNow) -> None:
    """The leader of this term asks this copy to become its successor."""
    if (
        term == replica.hard.term
        and replica.role == FOLLOWER
        and replica.leader == message.leader
        and may_stand(replica)
    ):
        stand(replica, pre=False, transfer=True)
