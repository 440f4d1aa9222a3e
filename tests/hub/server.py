"""A hub on 127.0.0.1 that takes uploads: the endpoints that huggingface_hub 2.4 uses for a commit.

Repositories are made, files are asked for and taken as regular or as LFS files. Nothing is checked
but the token.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_secretsecretsecretsecretsecretsecret"


class Uploads:
    """What was received."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.repositories: dict[str, bool] = {}
        """Name -> whether it is private."""
        self.files: dict[str, bytes] = {}
        self.objects: dict[str, bytes] = {}
        self.validated: list[str] = []
        """Cards that were sent to be checked."""
        self.refuses = False


@contextmanager
def serve_uploads() -> Iterator[Uploads]:
    uploads = Uploads()

    class Handler(_Handler):
        received = uploads

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    uploads.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield uploads
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    received: Uploads

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(404, {"error": "not found"})

    def do_HEAD(self) -> None:
        self._send(404, {})

    def do_PUT(self) -> None:
        self.received.objects[self.path.rpartition("/")[2]] = self._body()
        self._send(200, {})

    def do_POST(self) -> None:
        body, path = self._body(), self.path.partition("?")[0]
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" or self.received.refuses:
            self._send(403, {"error": f"token {TOKEN} may not write"})
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self.received.validated.append(json.loads(body)["content"])
            self._send(200, {"errors": [], "warnings": []})
        elif "/preupload/" in path:
            self._send(200, {"files": [_mode(each) for each in json.loads(body)["files"]]})
        elif path.endswith("/info/lfs/objects/batch"):
            self._send(200, self._batch(json.loads(body)), "application/vnd.git-lfs+json")
        elif "/commit/" in path:
            self._commit(body)
        else:
            self._send(404, {"error": path})

    def _create(self, asked: dict[str, Any]) -> None:
        owner = asked.get("organization") or "me"
        name = f"{owner}/{asked['name']}"
        self.received.repositories[name] = bool(
            asked.get("private") or asked.get("visibility") == "private"
        )
        self._send(200, {"url": f"{self.received.endpoint}/{name}", "name": name, "id": name})

    def _batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        objects = [
            {
                **each,
                "actions": {"upload": {"href": f"{self.received.endpoint}/put/{each['oid']}"}},
            }
            for each in asked["objects"]
        ]
        return {"transfer": "basic", "objects": objects}

    def _commit(self, body: bytes) -> None:
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                self.received.files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                self.received.files[value["path"]] = self.received.objects[value["oid"]]
        repository = self.path.partition("/models/")[2].partition("/commit/")[0]
        url = f"{self.received.endpoint}/{repository}/commit/{'0' * 40}"
        commit = {"commitUrl": url, "commitOid": "0" * 40}
        self._send(200, {**commit, "success": True, "hookOutput": ""})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, status: int, content: dict[str, Any], kind: str = "application/json") -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _mode(file: dict[str, Any]) -> dict[str, Any]:
    large = file["path"].endswith(".safetensors")
    return {
        "path": file["path"],
        "uploadMode": "lfs" if large else "regular",
        "shouldIgnore": False,
        "oid": None,
    }
