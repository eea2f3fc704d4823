"""The load generator keeps its connections and believes no wrong answer."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.client import CONNECTIONS, Unexpected, request, send


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    connections: set = set()

    def do_POST(self):
        self.connections.add(self.client_address)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(202)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send_response(304)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def url():
    Echo.connections = set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class TestSend:
    def test_gives_the_answers_in_the_order_of_the_requests(self, url):
        bodies = [f"body {number}".encode() * 1000 for number in range(20)]

        load = send(url, [request("POST", "/", {}, body) for body in bodies], expecting=202)

        assert [answer.body for answer in load.answers] == bodies

    def test_keeps_its_connections(self, url):
        send(url, [request("POST", "/", {}, b"{}")] * 20, expecting=202)

        assert len(Echo.connections) == CONNECTIONS

    def test_reads_no_body_after_304(self, url):
        load = send(url, [request("GET", "/", {})] * 8, expecting=304)

        assert {answer.body for answer in load.answers} == {b""}

    def test_refuses_another_status(self, url):
        with pytest.raises(Unexpected, match="wanted 200, got 202"):
            send(url, [request("POST", "/", {}, b"{}")], expecting=200)
