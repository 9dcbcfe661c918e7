"""Single requests to a program on loopback."""

import http.client

from child import Failure

REQUEST_SECONDS_MAX = 10.0


def connect(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS_MAX)


def get(port, path):
    """GET on a connection of its own; raises OSError while nothing listens."""
    connection = connect(port)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        text = body[:200].decode(errors="replace")
        raise Failure(f"GET {path} answered {answer.status}: {text}")
    return body


def post(port, path, content_type, body):
    """POST on a connection of its own; returns the answer's text, raises Failure unless it is accepted."""
    connection = connect(port)
    connection.request("POST", path, body.encode(), {"Content-Type": content_type})
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    if answer.status >= 300:
        raise Failure(f"POST {path} answered {answer.status}: {text}")
    return text
