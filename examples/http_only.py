"""Publish, poll and acknowledge over HTTP, with nothing but the standard library.

python examples/http_only.py [http://localhost:8080]
"""

import json
import sys
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen


class Queue:
    """The few requests that a worker needs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, path: str, body: object = None) -> Any:
        """POST the body, or GET without one."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            return json.load(answer)


def main(url: str = "http://localhost:8080") -> None:
    """Publish three messages and process them as a member of a group."""
    queue = Queue(url)
    try:
        queue.call("/topics", {"name": "example-http", "partitions": 1})
    except HTTPError as error:
        if error.code != 409:  # it exists
            raise
    queue.call("/topics/example-http/messages", {"messages": [{"value_json": {"id": number}} for number in range(3)]})

    member = queue.call("/groups/example-http/join", {"client_id": "example", "topics": ["example-http"]})["member_id"]
    query = urlencode({"member_id": member, "max_messages": 10, "values": "json"})
    for message in queue.call(f"/groups/example-http/poll?{query}")["messages"]:
        print("got", message["value_json"])
        queue.call("/messages/ack", {"receipt_handle": message["receipt_handle"]})
    queue.call("/groups/example-http/leave", {"member_id": member})


if __name__ == "__main__":
    main(*sys.argv[1:])
