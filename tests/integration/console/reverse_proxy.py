"""A reverse proxy that serves a console below a path, as nginx does with ``proxy_pass``."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATH = "/plant/dafka"


@contextmanager
def below_a_path(port: int) -> Iterator[str]:
    """Yield the address at which the server at ``port`` is found, too."""

    class Forward(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asking = http.client.HTTPConnection("127.0.0.1", port)
            with closing(asking):
                self.answer(asking)

        do_POST = do_GET  # noqa: N815 -- http.server's name

        def answer(self, asking: http.client.HTTPConnection) -> None:
            assert self.path.startswith(f"{PATH}/")
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            path = self.path.removeprefix(PATH)
            asking.request(self.command, path, body or None, dict(self.headers))
            with asking.getresponse() as found:
                self.send_response(found.status)
                for name, value in found.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                while piece := found.read1(65_536):
                    self.wfile.write(piece)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Pages end their event streams when they are left."""

    with Server(("127.0.0.1", 0), Forward) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{PATH}/"
        finally:
            server.shutdown()
            thread.join()
