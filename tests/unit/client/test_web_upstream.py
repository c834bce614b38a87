"""The page's client of the servers, asked for again where they do not answer."""

from __future__ import annotations

from podracer_client.jobs import Client
from podracer_client.servers import Connection
from podracer_client.web import Upstream


def test_a_client_that_is_found_again_stays_open():
    closed: list[str] = []
    connection = Connection(
        "127.0.0.1:1", "127.0.0.1:2", str, close=lambda: closed.append("closed")
    )
    client = Client(connection)
    upstream = Upstream(lambda: client, client)
    upstream.reconnect()
    assert upstream.client() is client
    assert not closed
    upstream.close()
    assert closed
