"""A server that speaks the routes of the Hugging Face hub which huggingface_hub uses for models.

Repositories are folders ROOT/OWNER/NAME/COMMIT; the last commit by name is `main`. Files of
`*.safetensors` are LFS: the hub answers with a redirect to a second address, as the real one does,
whose signature holds for the range that was asked for. What goes over the wire is counted.
"""

import functools
import gzip
import hashlib
import json
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

_BLOCK = 1 << 20


@functools.cache
def _digest(path, state):
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def digest(path):
    """Return the SHA-256 of a file; one next to it that ends in `.sha256` saves the reading."""
    stated = path.with_name(f".{path.name}.sha256")
    if stated.is_file():
        return stated.read_text()
    return _digest(path, path.stat().st_mtime_ns)


class Hub:
    """Two servers on ports of this machine: the hub, and the store that it redirects to."""

    def __init__(self, root, token=None):
        self.root, self.token = Path(root), token
        self.tags = {}
        """Repository and name of a revision -> commit."""
        self.gated = set()
        """Repositories that only the `token` may read."""
        self.without_ranges = False
        """Whether the store sends whole files, whatever range is asked for."""
        self.expired = 0
        """How many of the next requests the store refuses, as addresses that ran out."""
        self.broken, self.break_after = 0, 0
        """How many of the next connections the store cuts, and after how many bytes."""
        self.stalled, self.stall_s = 0, 0.0
        """How many of the next answers the store begins and then leaves, and for how long."""
        self.busy, self.retry_after = 0, None
        """How many of the next requests the hub answers with HTTP 503, and when to come again."""
        self.odd_listings, self.odd_tags = [], []
        """Functions that change the next lists of files, and functions of the next SHA-256."""
        self.packed = 0
        """How many of the next ranges the store packs without saying so."""
        self.trickling = 0
        """How many of the next ranges the store sends byte by byte."""
        self.ranges_left = None
        """After how many ranges the store sends whole files only."""
        self.delay_s = 0.0
        """Time that the store takes for a megabyte, or for what there is of one."""
        self.bytes = Counter()
        """Address -> bytes of bodies that were sent."""
        self.requests = []
        """Address, method, path, range and whether there was a token, of every request."""
        self.lock = threading.Lock()
        self._servers = [self._serve(address) for address in ("hub", "store")]
        self.endpoint, self.store = (f"http://127.0.0.1:{s.server_port}" for s in self._servers)

    def _serve(self, address):
        handler = type("Bound", (_Handler,), {"hub": self, "address": address})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def close(self):
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def forget(self):
        """Count from zero."""
        self.bytes.clear()
        self.requests.clear()

    def take(self, fault):
        """Count a fault down; return whether there was one left."""
        with self.lock:
            left = getattr(self, fault)
            setattr(self, fault, max(0, left - 1))
            return left > 0

    @property
    def sent(self):
        """Bytes of all bodies."""
        return sum(self.bytes.values())


@contextmanager
def running(root, **settings):
    hub = Hub(root, **settings)
    try:
        yield hub
    finally:
        hub.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle(self):
        with suppress(ConnectionError):  # whoever asked has left
            super().handle()

    def do_GET(self):
        form = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        url, token = urlsplit(self.path), self.headers.get("Authorization")
        path, asked = unquote(url.path), self.headers.get("Range", "")
        with self.hub.lock:
            one = (self.address, self.command, path, asked, token is not None)
            self.hub.requests.append(one)
        if self.address == "store":
            self._store(path, asked, parse_qs(url.query))
        elif self.hub.take("busy"):
            wait = self.hub.retry_after
            self._answer(503, headers={} if wait is None else {"Retry-After": wait})
        else:
            self._hub(url.path, asked, token, parse_qs(form or url.query))

    do_HEAD = do_POST = do_GET

    def _store(self, path, asked, query):
        if self.hub.take("expired") or query.get("range", [""])[0] != asked:
            self._answer(403)
        else:
            self._content(self.hub.root / path[1:], {}, asked)

    def _hub(self, path, asked, token, form):
        route = r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|paths-info|refs)(?:/([^/]+))?)?/?"
        api, file = (
            re.fullmatch(route, path),
            re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path),
        )
        name = (api or file or ["", "-"])[1]
        revision = unquote((api[3] if api else file[2] if file else None) or "main")
        commits = sorted(folder.name for folder in self.hub.root.glob(f"{name}/*"))
        may_read = name not in self.hub.gated or token == f"Bearer {self.hub.token}"
        if not commits:
            self._answer(404 if token else 401, headers={"X-Error-Code": "RepoNotFound"})
            return
        if api and api[2] == "refs":
            main = {"name": "main", "ref": "refs/heads/main", "targetCommit": commits[-1]}
            tags = [
                {"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": commit}
                for (repository, tag), commit in self.hub.tags.items()
                if repository == name
            ]
            self._json({"branches": [main], "converts": [], "tags": tags})
            return
        commit = commits[-1] if revision == "main" else revision
        commit = self.hub.tags.get((name, commit), commit)
        if commit not in commits:
            self._answer(404, headers={"X-Error-Code": "RevisionNotFound"})
        elif file and not may_read:
            self._answer(403 if token else 401, headers={"X-Error-Code": "GatedRepo"})
        elif file:
            self._resolve(self.hub.root / name / commit / unquote(file[3]), commit, asked)
        else:
            self._listing(self.hub.root / name / commit, name, commit, api[2], form)

    def _listing(self, folder, name, commit, kind, form):
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        files = [_entry(folder, path) for path in paths if not path.name.startswith(".")]
        if kind == "paths-info":
            files = [entry for entry in files if entry["path"] in form.get("paths", [])]
        if kind in ("tree", "paths-info"):
            self._json(files)
            return
        siblings = [
            {"rfilename": entry["path"], "size": entry["size"], "blobId": entry["oid"]}
            | ({"lfs": {"sha256": entry["lfs"]["oid"], **entry["lfs"]}} if "lfs" in entry else {})
            for entry in files
        ]
        document = {"id": name, "sha": commit, "siblings": siblings}
        if form.get("blobs") and self.hub.odd_listings:
            self.hub.odd_listings.pop(0)(document)
        self._json(document)

    def _resolve(self, path, commit, asked):
        known = {"X-Repo-Commit": commit}
        if not path.is_file():
            self._answer(404, headers={"X-Error-Code": "EntryNotFound", **known})
        elif path.suffix != ".safetensors":
            self._content(path, known | {"ETag": f'"{digest(path)[:40]}"'}, asked)
        else:
            place = f"{path.relative_to(self.hub.root)}?range={quote(asked)}"
            tag = f'"{digest(path)}"'
            if asked and self.hub.odd_tags:
                tag = self.hub.odd_tags.pop(0)(tag)
            known |= {"Location": f"{self.hub.store}/{place}", "X-Linked-Etag": tag}
            self._answer(302, headers=known | {"X-Linked-Size": path.stat().st_size})

    def _content(self, path, headers, asked):
        size = path.stat().st_size
        start, end, status = 0, size, 200
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
        is_store = self.address == "store"
        if span and is_store and self.hub.ranges_left is not None:
            self.hub.without_ranges = self.hub.ranges_left <= 0
            self.hub.ranges_left -= 1
        if span and not self.hub.without_ranges:
            start, end, status = int(span[1]), min(int(span[2] or size), size - 1) + 1, 206
            headers = headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
        if is_store and span and self.hub.take("packed"):
            with path.open("rb") as opened:
                opened.seek(start)
                packed = gzip.compress(opened.read(end - start))
            self._answer(status, packed, headers)
            return
        stop = end
        if is_store and end - start > self.hub.break_after and self.hub.take("broken"):
            stop = start + self.hub.break_after
        self._head(status, headers | {"Content-Length": end - start})
        if self.command == "HEAD":
            return
        if is_store and self.hub.take("stalled"):
            time.sleep(self.hub.stall_s)
            self.close_connection = True
            return
        is_trickling = is_store and self.command == "GET" and self.hub.take("trickling")
        with path.open("rb") as opened, suppress(ConnectionError):
            opened.seek(start)
            while start < stop:
                if is_trickling:
                    time.sleep(0.02)
                content = opened.read(1 if is_trickling else min(_BLOCK, stop - start))
                self.wfile.write(content)
                with self.hub.lock:
                    self.hub.bytes[self.address] += len(content)
                start += len(content)
                time.sleep(self.hub.delay_s if is_store else 0)
        self.close_connection |= start < end

    def _json(self, content):
        self._answer(200, json.dumps(content).encode())

    def _answer(self, status, body=b"", headers=None):
        self._head(status, {**(headers or {}), "Content-Length": len(body)})
        if self.command != "HEAD":
            with suppress(ConnectionError):
                self.wfile.write(body)
            with self.hub.lock:
                self.hub.bytes[self.address] += len(body)

    def _head(self, status, headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, str(value))
        with suppress(ConnectionError):
            self.end_headers()


def _entry(folder, path):
    name, size, oid = str(path.relative_to(folder)), path.stat().st_size, digest(path)
    entry = {"type": "file", "path": name, "size": size, "oid": oid[:40]}
    is_lfs = path.suffix == ".safetensors"
    return entry | ({"lfs": {"oid": oid, "size": size, "pointerSize": 135}} if is_lfs else {})
