"""The address of a checked place for checkpoints."""

from __future__ import annotations

import posixpath
from typing import Any
from urllib.parse import quote, urlencode

from clutch.wire.experiments import Storage
from clutch.workloads.experiment.config.model_storage import (
    WrittenAzure,
    WrittenClass,
    WrittenDirectory,
    WrittenGcs,
    WrittenHdfs,
    WrittenS3,
    WrittenSharedFs,
    WrittenStorage,
)


def storage_of(written: WrittenStorage, options: dict[str, Any]) -> Storage:
    """Where it is. Without a secret an object store is opened with what the machine's surroundings offer."""
    match written:
        case WrittenSharedFs():
            return _folder(posixpath.join(written.host_path, written.storage_path or ""))
        case WrittenDirectory():
            return _folder(written.container_path)
        case WrittenS3():
            asked = {"endpoint": written.endpoint_url, "region": written.region}
            secret = written.credentials or ""
            return Storage(address=_address("s3", written.bucket, written.prefix, asked, not secret), secret=secret)
        case WrittenGcs():
            key_file = written.key_file
            return Storage(address=_address("gs", written.bucket, written.prefix, {"key_file": key_file}, not key_file))
        case WrittenAzure():
            place = f"{written.account}@{written.container}" if written.account else written.container
            secret = written.credentials or ""
            asked = {"endpoint": written.account_url}
            return Storage(address=_address("az", place, written.prefix, asked, not secret), secret=secret)
        case WrittenHdfs():
            port = f":{written.port}" if written.port else ""
            return Storage(address=written.url or f"hdfs://{written.host}{port}{written.path or '/'}")
        case WrittenClass():
            return Storage(address=f"class:{written.class_}", options=options)
    return Storage()


def _folder(path: str) -> Storage:
    return Storage(address=f"file://{quote(posixpath.normpath(path))}")


def _address(scheme: str, place: str, prefix: str | None, asked: dict[str, str | None], ambient: bool) -> str:
    folder = (prefix or "").strip("/")
    options = {key: value for key, value in asked.items() if value}
    if ambient:
        options["credentials"] = "ambient"
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{place}{'/' + quote(folder) if folder else ''}{query}"
