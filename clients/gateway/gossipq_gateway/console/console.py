"""The routes of the console, under /console of the HTTP port.

A cookie has the user's token; scripts and other sites cannot read it. GET requests change nothing.
A POST must contain a seal, which only pages for the same token have (against CSRF).
"""

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

import gossipq
from gossipq import limits
from gossipq.clock import SystemClock
from gossipq.errors import Forbidden, GossipqError
from gossipq.permissions import WHOLE
from gossipq.texts import readable
from gossipq_client import Client
from gossipq_client.values import series
from gossipq_gateway.console import pages, views
from gossipq_gateway.console.watches import Connect, MeansOf, Watch, Watches
from gossipq_gateway.dialect import Desk
from gossipq_gateway.manners import STREAMED
from gossipq_gateway.numbers import whole
from gossipq_gateway.problems import is_forbidden
from gossipq_ops.collect import growth_rows
from gossipq_ops.questions import (
    Act,
    Answer,
    Failed,
    Find,
    Open,
    Opened,
    Page,
    Runs,
    Stand,
    Standing,
    Subject,
    Try,
    Work,
)
from gossipq_ops.verbs import Verb, command_of, name_of, question_of, verbs_of

ROOT = "/console"
COOKIE = "gossipq_console"
TOKEN = re.compile(r"(?:gq_)?([0-9a-f]{64})")
FORM_BYTES_MAX = 1 << 20
PAGE_RECORDS = 50
LETTERS_SHOWN = 200
BEAT_S = 1.0  #: interval between two parts of a live page
QUIET_MS = 15_000  #: after this time without parts, a comment keeps the connection alive
#: what a page asks for besides snapshots is asked for again after this time
AGAIN_MS = {"topic": 60_000, "jobs": 2_000, "schedule": 2_000}
RESOURCES = resources.files(__package__)
NO_GROWTH: views.Grown = ((), ())
NAMED = {"topic": "topics", "group": "groups", "message": "messages", "schedule": "jobs"}  #: page -> its tab
STATIC = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
Query = Mapping[str, str]
Shown = dict[str, Any]


class Console:
    """The dialect of browsers. `connect` makes the clients of users."""

    name = "console"

    def __init__(self, connect: Connect, server: str, means: MeansOf) -> None:
        """`server` is shown as the name of a cluster without a name. `means`: for verbs of nodes."""
        self._watches = Watches(connect, server, means, SystemClock())

    @asynccontextmanager
    async def serve(self, desk: Desk) -> AsyncIterator[None]:
        await asyncio.to_thread(pages.prepare)
        try:
            yield
        finally:
            await self._watches.close()

    def routes(self, desk: Desk) -> Sequence[BaseRoute]:
        def page(name: str) -> Route:
            async def answer(request: Request) -> Response:
                desk.counters.request()
                return await self._page(request, name)

            path = f"{ROOT}/{'' if name == 'overview' else name}"
            return Route(path, answer, methods=["GET"])

        def post(name: str, serve: Callable[[Request, dict[str, list[str]]], Awaitable[Response]]) -> Route:
            async def answer(request: Request) -> Response:
                desk.counters.request()
                form = await _form(request)
                if form is None:
                    return _text("the form is missing or too large", 413)
                if not self._watches.sealed(_token(request), _first(form, "seal")):
                    desk.counters.error()
                    return _text(
                        "this form belongs to another session, or the gateway has restarted: go back and "
                        "load the page again",
                        403,
                    )
                return await serve(request, form)

            return Route(f"{ROOT}/{name}", answer, methods=["POST"])

        names = [*PAGES, *NAMED]
        return [
            Route("/", lambda request: RedirectResponse(f"{ROOT}/"), methods=["GET"]),
            Route(ROOT, lambda request: RedirectResponse(f"{ROOT}/"), methods=["GET"]),
            *map(page, names),
            Route(f"{ROOT}/live", self._live, methods=["GET"]),
            Route(f"{ROOT}/static/{{name}}", _static, methods=["GET"]),
            post("act", self._act),
            post("sign-in", self._sign_in),
            post("sign-out", self._sign_out),
        ]

    # --- pages

    async def _page(self, request: Request, name: str) -> Response:
        token = _token(request)
        try:
            watch = await self._watches.of(token)
        except GossipqError as error:
            return self._stranger(error, token)
        context = self._context(watch, token, name, request.url.path, request.url.query)
        try:
            shown = await _shown(watch, name, request.query_params)
        except Forbidden as error:
            said = Failed(error.message, error.hint)
            return _html(pages.page("missing", **context | {"title": "Not allowed", "said": said}), 403)
        if shown is None:
            said = Failed(f"there is no such {name}", f"gossipq {name} ls")
            return _html(pages.page("missing", **context | {"title": "Nothing here", "said": said}), 404)
        return _html(pages.page(name, **context | shown))

    def _context(self, watch: Watch, token: bytes | None, name: str, path: str, query: str) -> Shown:
        here = NAMED.get(name, name)
        back = f"{path}?{query}" if query else path
        return {
            "head": views.head(watch.history, watch.clock.now().wall_ms),
            "here": here,
            "title": TITLES.get(name, name),
            "user": watch.user,
            "signed_in": token is not None,
            "seal": self._watches.seal(token),
            "back": back,
            "live_path": f"{ROOT}/live?page={name}&{query}" if name in LIVE else "",
            "version": gossipq.__version__,
            "allowed": lambda kind, names: allowed(watch, Subject(kind, tuple(names))),
        }

    def _stranger(self, error: GossipqError, token: bytes | None) -> Response:
        """Return the sign-in page, or an error page if no node can be asked."""
        said, asks = Failed(error.message, error.hint), is_forbidden(error)
        shown = said if not asks or token is not None else None
        made = pages.page("sign_in", said=shown, asks=asks, seal=self._watches.seal(token))
        return _html(made, 401 if asks else 503)

    # --- live

    async def _live(self, request: Request) -> Response:
        """Send parts of a page as Server-Sent Events, when they change."""
        token, name = _token(request), request.query_params.get("page", "")
        if name not in LIVE:
            return _text("no such page", 404)
        try:
            watch = await self._watches.of(token)
        except GossipqError as error:
            return _text(error.message, 401 if is_forbidden(error) else 503)
        path = f"{ROOT}/{'' if name == 'overview' else name}"
        query = "&".join(part for part in request.url.query.split("&") if not part.startswith("page="))
        more: Shown = {}

        async def events() -> AsyncIterator[bytes]:
            before: dict[str, str] = {}
            told_ms = watch.boot_ms
            yield b"retry: 2000\n\n"
            while not (watch.closed or await request.is_disconnected()):  # the page reconnects then
                watch.touch()
                parts = await self._parts(watch, token, name, path, query, request.query_params, more)
                fresh = {each: text for each, text in parts.items() if before.get(each) != text}
                before = parts
                if fresh:
                    told_ms = watch.boot_ms
                    yield b"data: " + json.dumps(fresh).encode() + b"\n\n"
                elif watch.boot_ms - told_ms > QUIET_MS:
                    told_ms = watch.boot_ms
                    yield b": still here\n\n"
                await asyncio.sleep(BEAT_S)

        headers = {name.lower(): value for name, value in HEADERS.items()} | STREAMED
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    async def _parts(
        self,
        watch: Watch,
        token: bytes | None,
        name: str,
        path: str,
        query: str,
        asked: Query,
        more: Shown,
    ) -> dict[str, str]:
        context = self._context(watch, token, name, path, query)
        now_ms = watch.boot_ms
        if name in AGAIN_MS and now_ms >= more.get("due_ms", 0):
            more["found"] = await _more(watch, name, asked)
            more["due_ms"] = watch.boot_ms + AGAIN_MS[name]
        shown = _live_view(watch, name, asked, more.get("found"))
        parts = {each: pages.part(each, **context) for each in ("top", "tabs")}
        return parts | ({"live": pages.live(name, **context | shown)} if shown is not None else {})

    # --- verbs

    async def _act(self, request: Request, form: dict[str, list[str]]) -> Response:
        """Show what a verb would do, or execute it with `sure`."""
        token = _token(request)
        try:
            watch = await self._watches.of(token)
        except GossipqError as error:
            return self._stranger(error, token)
        act = Act(
            _first(form, "verb"),
            Subject(_first(form, "kind"), tuple(form.get("name", ()))),
            _first(form, "text"),
        )
        back = _back(_first(form, "back"))
        verb = next((each for each in allowed(watch, act.subject) if each.name == act.verb), None)
        if verb is None:
            return _text("there is no such action, or you do not have the permission", 403)
        sure = _first(form, "sure") == "1"
        context = self._context(watch, token, "act", back, "") | {"back": back, "live_path": ""}
        shown: Shown = {
            "title": f"{verb.name} {name_of(act.subject)}",
            "verb": verb,
            "act": act,
            "command": command_of(verb, act.subject, act.text),
            "said": None,
            "question": "",
            "done": False,
            "asks": False,
            "sure": False,
            "old": "",
        }
        if verb.asks and not act.text:
            shown |= {"asks": True, "old": await _old(watch, act) if verb.name == "edit" else ""}
        elif not sure and (question := question_of(act)):
            shown |= {"question": question, "sure": True}
        else:
            said = await watch.answer(act if sure else Try(act))
            failed = isinstance(said, Failed)
            again = failed and not sure and bool(verb.asks)
            shown |= {"said": said, "done": sure and not failed, "asks": again}
            shown |= {"sure": not sure and not failed and not verb.shows}
        return _html(pages.page("act", **context | shown))

    # --- users

    async def _sign_in(self, request: Request, form: dict[str, list[str]]) -> Response:
        found = TOKEN.fullmatch(_first(form, "token").strip())
        if found is None:
            said = Failed(
                "this is not a token",
                "a token is gq_ and 64 letters and digits, as in the file of credentials",
            )
            seal = self._watches.seal(_token(request))
            return _html(pages.page("sign_in", said=said, asks=True, seal=seal), 401)
        token = bytes.fromhex(found[1])
        try:
            await self._watches.of(token)
        except GossipqError as error:
            return self._stranger(error, token)
        made = RedirectResponse(f"{ROOT}/", 303, HEADERS)
        made.set_cookie(
            COOKIE, token.hex(), path=ROOT, secure=_by_https(request), httponly=True, samesite="strict"
        )
        return made

    async def _sign_out(self, request: Request, form: dict[str, list[str]]) -> Response:
        made = RedirectResponse(f"{ROOT}/", 303, HEADERS)
        made.delete_cookie(COOKIE, path=ROOT, secure=_by_https(request), httponly=True, samesite="strict")
        return made


# --- content of the pages

TITLES = {
    "overview": "Overview",
    "nodes": "Nodes",
    "topics": "Topics",
    "groups": "Groups",
    "clients": "Clients",
    "messages": "Messages",
    "dead": "Dead letters",
    "schedules": "Schedules",
    "jobs": "Jobs",
    "alarms": "Alarms",
    "config": "Configuration",
}
PAGES = tuple(TITLES)
LIVE = {*PAGES, "topic", "group", "schedule"} - {"messages"}


async def _shown(watch: Watch, name: str, asked: Query) -> Shown | None:
    """Return the content for a page's template; None if its subject does not exist."""
    if name == "messages":
        return await _messages(watch, asked)
    if name == "message":
        return await _message(watch, asked.get("ref", ""))
    shown = _live_view(watch, name, asked, await _more(watch, name, asked))
    if shown is None:
        return None
    if name == "group":
        shown |= await _standing(watch, asked.get("topic", ""), asked.get("group", ""))
        shown["title"] = asked.get("group", "")
    if name in ("topic", "schedule"):
        shown["title"] = asked.get("name", "")
    if name == "dead":
        shown |= await _letters(watch, asked.get("topic", ""), asked.get("group", ""))
    return shown


async def _more(watch: Watch, name: str, asked: Query) -> Any:
    """Return what a page shows besides snapshots: the growth of a topic, or an answer about jobs."""
    topic, group = asked.get("topic", ""), asked.get("group", "")
    match name:
        case "topic":
            return await _growth(watch, asked.get("name", ""))
        case "jobs" if topic and group:
            return await watch.answer(Work(topic, group))
        case "schedule":
            return await watch.answer(Runs(topic, group, asked.get("name", "")))
    return None


def _live_view(watch: Watch, name: str, asked: Query, more: Any) -> Shown | None:
    history, like = watch.history, asked.get("like", "")
    topic, group = asked.get("topic", ""), asked.get("group", "")
    match name:
        case "topics":
            return views.topics(history, like)
        case "topic":
            return views.topic(history, asked.get("name", ""), more or NO_GROWTH)
        case "groups":
            return views.groups(history, like)
        case "group":
            return views.group(history, topic, group)
        case "jobs":
            return views.jobs(history, topic, group, more)
        case "schedule":
            return views.schedule(history, topic, group, asked.get("name", ""), more)
        case "clients":
            return views.clients(history, like)
        case _:
            return PLAIN[name](history)


PLAIN = {
    "overview": views.overview,
    "nodes": views.nodes,
    "dead": views.dead,
    "schedules": views.schedules,
    "alarms": views.alarm_rows,
    "config": views.config,
}


async def _growth(watch: Watch, topic: str) -> views.Grown:
    """Return the growth of a topic; empty if the user may not see it."""

    def ask(mq: Client) -> views.Grown:
        hours, minutes = (mq.admin.raw.growth([topic], hours=hours) for hours in (True, False))
        by_hour, by_minute = series(hours, limits.HOUR_MS), series(minutes, limits.MINUTE_MS)
        return growth_rows(by_hour), growth_rows(by_minute)

    try:
        return await watch.call(ask)
    except GossipqError:
        return NO_GROWTH


async def _messages(watch: Watch, asked: Query) -> Shown:
    given = {
        name: asked.get(name, "").strip() for name in ("topic", "partition", "text", "key", "from", "to")
    }
    searched = any(given[name] for name in ("text", "key", "from", "to"))
    back = whole(asked.get("back"))
    found: Answer | None = None
    if given["topic"]:
        number = whole(given["partition"], otherwise=-1)
        if searched:
            text = f"key={given['key']}" if given["key"] else given["text"]
            found = await watch.answer(Find(given["topic"], text, given["from"], given["to"]))
        else:
            found = await watch.answer(Page(given["topic"], number, back, PAGE_RECORDS))
    names = sorted(topic for topic in watch.history.topics if not topic.startswith("_"))
    return {
        "asked": given,
        "names": names[: views.ROWS_MAX],
        "found": found,
        "searched": searched,
        "back_next": back + PAGE_RECORDS,
    }


async def _message(watch: Watch, ref: str) -> Shown:
    found = await watch.answer(Open(ref))
    return {
        "title": ref,
        "found": found,
        "shown": _pretty(found.value) if isinstance(found, Opened) else "",
    }


def _pretty(value: bytes) -> str:
    """Format JSON in lines; other values as text."""
    try:
        return json.dumps(json.loads(value), indent=2, ensure_ascii=False)
    except ValueError:
        return readable(value, "\n\t")


async def _standing(watch: Watch, topic: str, group: str) -> Shown:
    stand = await watch.answer(Stand(topic, group))
    alike: dict[tuple[str, str, str], list[int]] = {}
    for number, *rest in stand.rows if isinstance(stand, Standing) else ():
        alike.setdefault((rest[0], rest[1], rest[2]), []).append(number)
    whys = [(numbers, *at) for at, numbers in alike.items()]
    return {"stand": stand, "whys": whys, "dead_of": [topic, group]}


async def _letters(watch: Watch, topic: str, group: str) -> Shown:
    if not topic or not group:
        return {"dead_of": [], "stand": None, "letters": []}

    def first(mq: Client) -> list[Any]:
        found = mq.dead(topic, group).letters(values=False)
        return [letter for letter, _ in zip(found, range(LETTERS_SHOWN), strict=False)]

    try:
        letters = await watch.call(first)
    except GossipqError:
        letters = []
    return await _standing(watch, topic, group) | {"letters": letters}


async def _old(watch: Watch, act: Act) -> str:
    """Return the value to be edited, if it can be typed."""
    found = await watch.answer(Open(act.subject.names[0]))
    try:
        whole = isinstance(found, Opened) and len(found.value) == found.size
        return found.value.decode() if isinstance(found, Opened) and whole else ""
    except UnicodeDecodeError:
        return ""


def allowed(watch: Watch, subject: Subject) -> Sequence[Verb]:
    """Return the verbs of a row that this user may execute."""
    if len(subject.names) != views.names_of(subject.kind):
        return ()
    if watch.rights is None:
        return verbs_of(subject)
    at = WHOLE if subject.kind in ("client", "node") else subject.names[0].partition("/")[0]
    return [verb for verb in verbs_of(subject) if watch.rights.allows(verb.needs, at)]


# --- requests and answers


def _by_https(request: Request) -> bool:
    """True if the browser used HTTPS; a proxy reports that in X-Forwarded-Proto."""
    return request.url.scheme == "https"


def _token(request: Request) -> bytes | None:
    found = TOKEN.fullmatch(request.cookies.get(COOKIE, ""))
    return bytes.fromhex(found[1]) if found else None


async def _form(request: Request) -> dict[str, list[str]] | None:
    """Return the fields of a form, or None if it is not a form or too large."""
    if (
        request.headers.get("content-type", "").partition(";")[0].strip()
        != "application/x-www-form-urlencoded"
    ):
        return None
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > FORM_BYTES_MAX:
            return None
    try:
        rows = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=32)
    except ValueError:
        return None
    found: dict[str, list[str]] = {}
    for name, value in rows:
        found.setdefault(name, []).append(value)
    return found


def _first(form: Mapping[str, Sequence[str]], name: str) -> str:
    return next(iter(form.get(name, ())), "")


def _back(text: str) -> str:
    """Return a page of the console, for any text in a form."""
    parts = urlsplit(text)
    inside = not parts.scheme and not parts.netloc and parts.path.startswith(f"{ROOT}/") and "\\" not in text
    return text if inside else f"{ROOT}/"


def _html(text: str, status: int = 200) -> Response:
    return HTMLResponse(text, status, HEADERS)


def _text(text: str, status: int) -> Response:
    return HTMLResponse(f"<!doctype html><title>gossipq</title><p>{html.escape(text)}</p>", status, HEADERS)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        return _text("there is no such file", 404)
    body = RESOURCES.joinpath("static", name).read_bytes()
    headers = HEADERS | {"Cache-Control": "max-age=300"}
    return Response(body, 200, headers, STATIC[name])
