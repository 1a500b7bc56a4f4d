"""A REST catalog for tests: pyiceberg's SQLite catalog behind the paths of Iceberg's REST specification that
a writer asks for. Requests are read, and answers written, by pyiceberg's own models of them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table

STATUSES: dict[type[Exception], int] = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class RestCatalog:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._tables = SqlCatalog("served", uri=f"sqlite:///{folder}/served.db", warehouse=f"file://{folder}")
        self._one_at_a_time = threading.Lock()
        self.unanswered: list[
            int
        ] = []  #: statuses that the next commits are answered with, once they are done
        self.refused: list[int] = []  #: the same for commits that are not done
        self.forbidden = False
        self.commits = 0
        self.uri = ""

    def answer(self, method: str, path: list[str], body: bytes) -> tuple[int, Any]:
        """path: what follows /v1/."""
        if self.forbidden:
            return _failed(401)
        with self._one_at_a_time:
            try:
                return self._answer(method, path, body)
            except tuple(STATUSES) as error:
                status = STATUSES[type(error)]
                told = {"message": str(error), "type": type(error).__name__, "code": status}
                return status, {"error": told}

    def _answer(self, method: str, path: list[str], body: bytes) -> tuple[int, Any]:
        match method, path:
            case "GET", ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "GET", ["namespaces"]:
                return 200, {"namespaces": self._tables.list_namespaces()}
            case "POST", ["namespaces"]:
                asked = json.loads(body)
                self._tables.create_namespace(tuple(asked["namespace"]))
                return 200, {"namespace": asked["namespace"], "properties": {}}
            case "GET" | "HEAD", ["namespaces", namespace]:
                self._tables.load_namespace_properties(namespace)
                return 200, {"namespace": [namespace], "properties": {}}
            case "GET", ["namespaces", namespace, "tables"]:
                there = self._tables.list_tables(namespace)
                return 200, {"identifiers": [{"namespace": each[:-1], "name": each[-1]} for each in there]}
            case "POST", ["namespaces", namespace, "tables"]:
                unsaid = dict.fromkeys(("location", "partition-spec", "write-order"))
                made = CreateTableRequest.model_validate(unsaid | json.loads(body))
                return 200, _told(self._tables.create_table((namespace, made.name), made.table_schema))
            case "GET" | "HEAD", ["namespaces", namespace, "tables", name]:
                return 200, _told(self._tables.load_table((namespace, name)))
            case "POST", ["namespaces", namespace, "tables", name]:
                return self._commit(namespace, name, CommitTableRequest.model_validate_json(body))
            case _:
                return 404, {"error": {"message": f"{method} {path}", "type": "NotFound", "code": 404}}

    def _commit(self, namespace: str, name: str, asked: CommitTableRequest) -> tuple[int, Any]:
        if self.refused:
            return _failed(self.refused.pop())
        table = self._tables.load_table((namespace, name))
        self._tables.commit_table(table, asked.requirements, asked.updates)
        self.commits += 1
        if self.unanswered:
            return _failed(self.unanswered.pop())
        return 200, _told(self._tables.load_table((namespace, name)))


def _told(table: Table) -> Any:
    answer = TableResponse(metadata_location=table.metadata_location, metadata=table.metadata)
    return json.loads(answer.model_dump_json(by_alias=True, exclude_none=True))


def _failed(status: int) -> tuple[int, Any]:
    return status, {"error": {"message": "asked for", "type": "Asked", "code": status}}


@contextmanager
def served(folder: Path) -> Iterator[RestCatalog]:
    """At `uri` of what it gives."""
    catalog = RestCatalog(folder)

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")][1:]
            status, told = catalog.answer(self.command, path, body)
            raw = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(raw)

        do_GET = do_HEAD = do_POST = _handle

        def log_message(self, *_: object) -> None:
            """Tests need no log of requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        catalog.uri = f"http://127.0.0.1:{server.server_port}"
        try:
            yield catalog
        finally:
            server.shutdown()
            thread.join()
