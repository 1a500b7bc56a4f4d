"""The cluster as a signed-in user sees it: snapshots as in `gossipq top`, while pages are open."""

import asyncio
import hmac
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from threading import Lock
from typing import TypeVar

from gossipq.clock import Clock
from gossipq.errors import GossipqError
from gossipq.limits import FRESH_MS
from gossipq.permissions import Rights
from gossipq_client import Client
from gossipq_gateway.problems import is_forbidden
from gossipq_ops.actions import Connect as ConnectNode
from gossipq_ops.actions import Means
from gossipq_ops.answers import Answerer
from gossipq_ops.gather import Gathering
from gossipq_ops.history import History
from gossipq_ops.questions import Answer, Ask, Failed, Find

T = TypeVar("T")
MeansOf = Callable[[ConnectNode], Means]
Connect = Callable[[str, bytes | None], Client]  #: (a node or "", token; None = without a token)
EVERY_S = 1.0  #: between two snapshots
LOOK_S = 0.1
IDLE_MS = 20_000  #: without open pages, the cluster is asked no longer than this
FIRST_MS = 8_000  #: the first page waits this long for the first snapshot
SEARCH_S = 10.0  #: a search ends after this time, and says so
WATCHES_MAX = 64  #: users at the same time


class Watch:
    """The watch of one user. Its cost for the cluster is that of one
    `top`, for any number of pages.
    """

    def __init__(
        self, connect: Connect, server: str, means: MeansOf, token: bytes | None, clock: Clock
    ) -> None:
        self._connect, self._server, self._means = connect, server, means
        self._token, self.clock = token, clock
        self.history = History()
        self.rights: Rights | None = None  #: None: everything
        self.user = ""
        self.used_ms = self.boot_ms
        self.news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._mq: Client | None = None
        self._lock = Lock()
        self.error: Exception | None = None
        self.closed = False

    @property
    def boot_ms(self) -> int:
        return self.clock.now().boot_ms

    @property
    def idle(self) -> bool:
        return self.boot_ms - self.used_ms > IDLE_MS

    @property
    def _fresh(self) -> bool:
        """True if the last snapshot is recent."""
        return self.clock.now().wall_ms - self.history.now.time_ms < FRESH_MS

    def touch(self) -> None:
        """Note that a page is open."""
        if self.closed:
            return
        self.used_ms = self.boot_ms
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def ready(self) -> None:
        """Wait for the first snapshot. Raises errors of connecting."""
        await self._identify()
        self.touch()
        end_ms = self.boot_ms + FIRST_MS
        while not self._fresh and self.boot_ms < end_ms and self.error is None:
            await asyncio.sleep(0.02)
        if self.error is not None and (self.closed or not self.history.count):
            raise self.error

    def _reach(self, endpoint: str) -> Client:
        """Return a client of this user at a node; "": at any node."""
        return self._connect(endpoint, self._token)

    async def _identify(self) -> None:
        if not self.user:
            said = await self.call(lambda mq: mq.admin.raw.whoami())
            self.rights = Rights(said.user, said.rules) if said.closed else None
            self.user = said.user or "everybody"

    async def _run(self) -> None:
        """Take snapshots until no page is open, or the cluster refuses this user.

        After a refusal the last snapshot is not shown any more. Curves start anew, because
        the time between is unknown.
        """
        self.history = History()
        with ExitStack() as stack:
            gathering = Gathering(self._reach, self._server, lambda: EVERY_S)
            await asyncio.to_thread(stack.enter_context, gathering)
            while not (self.idle or self.closed):
                found = gathering.next()
                self.error = gathering.error
                self.closed = isinstance(self.error, GossipqError) and is_forbidden(self.error)
                if found is not None:
                    self.history.add(found)
                    async with self.news:
                        self.news.notify_all()
                await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(stack.close)

    async def call(self, question: Callable[[Client], T]) -> T:
        """Ask with a client of its own, one question at a time. Raises errors of the question."""

        def ask() -> T:
            with self._lock:
                if self._mq is None:
                    self._mq = self._reach("")
                return question(self._mq)

        return await asyncio.to_thread(ask)

    async def answer(self, ask: Ask) -> Answer:
        """Return an answer. Faults become a Failed; a search ends after a while."""
        answerers: list[Answerer] = []

        def serve(mq: Client) -> Answer:
            answerers.append(Answerer(mq, self._means(self._reach)))
            return answerers[0].answer(ask)

        def stop() -> None:
            for each in answerers:
                each.stop()

        if isinstance(ask, Find):
            asyncio.get_running_loop().call_later(SEARCH_S, stop)
        try:
            return await self.call(serve)
        except GossipqError as error:
            return Failed(error.message, error.hint)

    async def close(self) -> None:
        self.closed, self.used_ms = True, -IDLE_MS - 1
        if self._task is not None:
            await self._task
        if self._mq is not None:
            await asyncio.to_thread(self._mq.close)


class Watches:
    """The watches of all users by token. Cookies have the tokens, so a restart loses nothing."""

    def __init__(self, connect: Connect, server: str, means: MeansOf, clock: Clock) -> None:
        self._means = means
        self._connect, self._server, self._clock = connect, server, clock
        self._of: OrderedDict[bytes, Watch] = OrderedDict()
        self._key = os.urandom(32)

    async def of(self, token: bytes | None) -> Watch:
        """Return the watch of a token. Raises GossipqError if it is
        unknown, or if no node answers.
        """
        name = token or b""
        watch = self._of.get(name)
        if watch is not None and watch.closed:  # it was refused: check the token again
            del self._of[name]
            await watch.close()
            watch = self._of.get(name)
        if watch is None:
            watch = self._of[name] = Watch(self._connect, self._server, self._means, token, self._clock)
        try:
            await watch.ready()
        except BaseException:
            if not watch.user and self._of.get(name) is watch:
                del self._of[name]
            raise
        if self._of.get(name) is watch:  # another may have replaced it meanwhile
            self._of.move_to_end(name)
        while len(self._of) > WATCHES_MAX:
            _, oldest = self._of.popitem(last=False)
            await oldest.close()
        return watch

    def seal(self, token: bytes | None) -> str:
        """Return the seal for forms of this user. Pages of other sites do not know it."""
        return hmac.new(self._key, token or b"", "sha256").hexdigest()

    def sealed(self, token: bytes | None, seal: str) -> bool:
        return hmac.compare_digest(self.seal(token).encode(), seal.encode())

    async def close(self) -> None:
        watches, self._of = list(self._of.values()), OrderedDict()
        for watch in watches:
            await watch.close()
