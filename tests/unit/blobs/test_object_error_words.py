"""What an object store's client says, and what we make of it."""

from __future__ import annotations

from obstore.exceptions import GenericError

from clutch.backends.blobs.object_errors import translated
from clutch.wire.errors import DiskFull, Unavailable


def test_a_number_of_milliseconds_is_no_status() -> None:
    said = "Error performing GET http://127.0.0.1:22868/b in 507.251851ms, after 4 retries: Connection refused"
    assert isinstance(translated(GenericError(said), "s3://b", "s3://b"), Unavailable)


def test_a_store_that_says_it_is_full_is_full() -> None:
    for said in ("status code: 507, body: none", "<Code>InsufficientStorage</Code>", "507 Insufficient Storage"):
        assert isinstance(translated(GenericError(said), "s3://b", "s3://b"), DiskFull)
