"""Typed header of the requests that only name a topic: its route, and what is asked about it. Apart from the
other headers, since every client asks for routes at its start. Pure.
"""

from remoting.headers.fields import RequestHeader, request_header


@request_header
class TopicRequestHeader(RequestHeader):
    """Codes 105, 202, 215, 300 and 351: a topic and nothing else that matters to us."""

    topic: str
