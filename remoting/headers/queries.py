"""Typed headers of the search for messages by key, id and position. Pure."""

from remoting.headers.fields import Int, Long, RequestHeader, request_header, wire_name


@request_header
class QueryMessageRequestHeader(RequestHeader):
    """Code 12. With `is_unique_key` the key is a message id that its client chose."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp_ms: Long = wire_name("beginTimestamp")
    end_timestamp_ms: Long = wire_name("endTimestamp")
    is_unique_key: bool = wire_name("_UNIQUE_KEY_QUERY", default=False)
    index_type: str | None = None
    """K (or nothing): by a key, U: by its id, T: by its tag; from version 5.4 clients only."""


@request_header
class ViewMessageRequestHeader(RequestHeader):
    """Code 33. `position` is the record's byte position in the log (`offset` on the wire)."""

    position: Long = wire_name("offset")
    topic: str | None = None
