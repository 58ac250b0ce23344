"""A registry that knows no image, as a program: `python -m tests.docker.registry PORT`.

It runs in the rig's network, on 127.0.0.1, where an engine asks a registry without TLS.
"""

import json
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer


class EmptyRegistry(BaseHTTPRequestHandler):
    """Answers as the registry's specification says for a manifest that there is not."""

    def do_GET(self) -> None:
        if self.path == "/v2/":
            self._answer(HTTPStatus.OK, {})
            return
        error = {"code": "MANIFEST_UNKNOWN", "message": "manifest unknown", "detail": {}}
        self._answer(HTTPStatus.NOT_FOUND, {"errors": [error]})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: HTTPStatus, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), EmptyRegistry).serve_forever()
