"""A model hub on 127.0.0.1: the few endpoints that mergekit's downloads use. Knows a folder only.

Endpoints and headers are those that huggingface_hub 2.4 asks for (`HfApi.model_info`,
`list_repo_tree`, `get_hf_file_metadata`, plain GET downloads).
"""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@contextmanager
def serve_hub(root):
    """Serve the models ``root/OWNER/NAME/*`` until the body ends; yields the endpoint."""

    class Handler(_HubHandler):
        folder = root

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder = None

    def do_GET(self):
        self._answer()

    def do_HEAD(self):
        self._answer()

    def log_message(self, format, *args):
        pass

    def _answer(self):
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            self._answer_api("/".join(parts[2:4]), parts[4:])
        elif len(parts) >= 5 and parts[2] == "resolve":
            self._answer_file("/".join(parts[:2]), "/".join(parts[4:]))
        else:
            self._send(404, b"")

    def _answer_api(self, model, rest):
        files = self._files(model)
        if not files:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif not rest or rest[0] == "revision":
            siblings = [{"rfilename": file.name} for file in files]
            self._send_json({"id": model, "sha": _commit(model), "siblings": siblings})
        elif rest[0] == "tree" and len(rest) == 2:
            tree = [
                {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": _etag(f)}
                for f in files
            ]
            self._send_json(tree)
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _answer_file(self, model, name):
        found = [file for file in self._files(model) if file.name == name]
        if found:
            headers = {"ETag": f'"{_etag(found[0])}"', "X-Repo-Commit": _commit(model)}
            self._send(200, found[0].read_bytes(), headers)
        else:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": _commit(model)}
            self._send(404, b"", headers)

    def _files(self, model):
        return sorted(file for file in (self.folder / model).glob("*") if file.is_file())

    def _send_json(self, value):
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status, body, headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _commit(model):
    return hashlib.sha1(model.encode(), usedforsecurity=False).hexdigest()


def _etag(file):
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
