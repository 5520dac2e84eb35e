"""From an address to blobs: ``memory:``, ``file:`` or a path, ``s3:``, ``gs:``, ``az:``, ``hdfs:``, ``served:``.

Credentials are given in the address (``s3://KEY:SECRET@BUCKET``) or beside it, and then nothing else is consulted: no
environment, no metadata service of a cloud. ``?credentials=ambient`` asks for those explicitly.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from clutch.backends.blobs.base import FullBlobs
from clutch.backends.blobs.keys import check_prefix
from clutch.backends.blobs.memory import MemoryBlobs, MemoryShelf
from clutch.wire.errors import BadRequest

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_KNOWN = (
    "Use memory:, file:///FOLDER, a path, s3://KEY:SECRET@BUCKET/PREFIX?endpoint=URL&region=NAME, "
    "gs://BUCKET/PREFIX?key_file=FILE, az://ACCOUNT:KEY@CONTAINER/PREFIX, hdfs://HOST:PORT/FOLDER, or "
    "served:http://MASTER:PORT/WORKSPACE?token=TOKEN."
)
_OPTIONS = {
    "s3": ("endpoint", "region", "credentials", "virtual_host", "part_mib"),
    "gs": ("key_file", "credentials", "part_mib"),
    "az": ("endpoint", "credentials", "part_mib"),
    "hdfs": ("part_mib", "principal", "keytab"),
    "served": ("token", "part_mib", "ca_file"),
}
_NOWHERE = "http://127.0.0.1:1"
_RETRIES = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}


async def open_blobs(url: str, *, keys: tuple[str, str] | None = None) -> FullBlobs:
    """The blobs at this address. ``keys`` are the key and its secret, so that they need not stand in the address.

    Nothing is sent yet: ``check`` finds out whether the store is there and lets us in.
    """
    scheme, colon, rest = url.partition(":")
    if not url:
        raise BadRequest("the address of the blobs is empty", object="blobs", next_step=_KNOWN)
    if url == "agents:":
        raise BadRequest(
            "only a master keeps blobs on its agents' disks",
            object=url,
            next_step="Give it to clutch master --blobs; others use served:http://MASTER:PORT/WORKSPACE?token=TOKEN.",
        )
    if url == "memory:":
        return MemoryBlobs(MemoryShelf())
    if scheme == "served" and colon:
        return _open_served(rest, keys)
    if scheme == "hdfs" and colon:
        return _open_hdfs(url)
    if scheme in _OPTIONS and colon:
        return _open_objects(url, keys)
    if scheme == "file" and colon:
        if not rest.startswith("///") or len(rest) == 3:
            raise BadRequest("no folder in the address", object=url, next_step=_KNOWN)
        return await _open_directory(unquote(rest[2:]))
    if "://" in url:
        raise BadRequest(f"there is no way to keep blobs in {scheme!r}", object=scheme, next_step=_KNOWN)
    return await _open_directory(url)


async def _open_directory(path: str) -> FullBlobs:
    from clutch.backends.blobs.directory import DirectoryBlobs

    if "\0" in path:
        raise BadRequest("a NUL in the address", object="blobs", next_step=_KNOWN)
    return await DirectoryBlobs.open(Path(path))


def _open_objects(url: str, keys: tuple[str, str] | None) -> FullBlobs:
    try:
        from clutch.backends.blobs.client import Client
        from clutch.backends.blobs.object_store import ObjectBlobs
    except ModuleNotFoundError as missing:
        raise BadRequest(
            f"the object store client is not installed ({missing.name})",
            object="blobs",
            next_step="Run: pip install 'clutch[objects]'.",
        ) from missing
    parts = urlsplit(url)
    bucket = (parts.netloc.rpartition("@")[2]).strip()
    where = f"{parts.scheme}://{bucket}{parts.path}"
    if not bucket or ":" in bucket:
        raise BadRequest("no bucket in the address", object=f"{parts.scheme}://", next_step=_KNOWN)
    options = _options(parts, where)
    if keys is None and parts.username and parts.password:
        keys = (unquote(parts.username), unquote(parts.password))
    if keys is None and options.get("credentials") != "ambient" and not options.get("key_file"):
        raise BadRequest(
            "there are no credentials in the address",
            object=where,
            next_step=f"{_KNOWN} Or say ?credentials=ambient to use those of the environment or the machine.",
        )
    prefix = check_prefix(unquote(parts.path).strip("/"))
    make = {"s3": _s3, "gs": _gcs, "az": _azure}[parts.scheme]
    try:
        store = make(bucket, prefix, keys, options)
    except Exception as error:
        raise BadRequest(
            f"the address is not accepted: {str(error).partition(chr(10))[0][:200]}", object=where, next_step=_KNOWN
        ) from error
    return ObjectBlobs(Client(store), where, part_bytes=int(options.get("part_mib", "16")) << 20)


def _open_hdfs(url: str) -> FullBlobs:
    """``hdfs://HOST:PORT/FOLDER``; without a port, HOST is a name service of Hadoop's own configuration.

    Who asks is said by ``HADOOP_USER_NAME`` or is the user of this process, where Kerberos does not decide.
    """
    try:
        from hdfs_native import Client

        from clutch.backends.blobs.hdfs import PART_MIB, SETTINGS, HdfsObjects
        from clutch.backends.blobs.object_store import ObjectBlobs
    except ModuleNotFoundError as missing:
        raise BadRequest(
            f"the client of HDFS is not installed ({missing.name})",
            object="blobs",
            next_step="Run: pip install 'clutch[objects,hdfs]'.",
        ) from missing
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    where = f"hdfs://{host}{parts.path}"
    if not host or "@" in parts.netloc:
        raise BadRequest(
            "a user in the address" if host else "no host in the address",
            object=where,
            next_step="Write hdfs://HOST:PORT/FOLDER; the variable HADOOP_USER_NAME says who you are.",
        )
    options = _options(parts, where)
    folder = check_prefix(unquote(parts.path).strip("/"))
    try:
        client = Client(
            f"hdfs://{host}",
            SETTINGS,
            kerberos_principal=options.get("principal"),
            kerberos_keytab=options.get("keytab"),
        )
    except Exception as error:
        raise BadRequest(
            f"the address is not accepted: {str(error).partition(chr(10))[0][:200]}", object=where, next_step=_KNOWN
        ) from error
    part_bytes = int(options.get("part_mib", str(PART_MIB))) << 20
    return ObjectBlobs(HdfsObjects(client, f"/{folder}", where), where, part_bytes=part_bytes)


def _open_served(rest: str, keys: tuple[str, str] | None) -> FullBlobs:
    """``URL[,URL...]/WORKSPACE?token=TOKEN``; the token may be given beside the address, as the secret of ``keys``."""
    from clutch.backends.blobs.served import ServedBlobs
    from clutch.backends.masters import Masters

    place, _, query = rest.partition("?")
    bases, _, workspace = place.rpartition("/")
    where = f"served:{place}"
    addresses = tuple(base for base in bases.split(",") if base)
    if not workspace or not addresses or not all(a.startswith(("http://", "https://")) for a in addresses):
        raise BadRequest("no master and workspace in the address", object=where, next_step=_KNOWN)
    options = _options(SplitResult("served", "", "", query, ""), where)
    token = keys[1] if keys is not None else options.get("token", "")
    if not token:
        raise BadRequest("there is no token in the address", object=where, next_step=_KNOWN)
    masters = Masters(addresses, token, ca_file=options.get("ca_file", ""))
    return ServedBlobs(masters, unquote(workspace), part_bytes=int(options.get("part_mib", "8")) << 20)


def _options(parts: SplitResult, where: str) -> dict[str, str]:
    known = _OPTIONS[parts.scheme]
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in known:
            raise BadRequest(f"unknown option {name!r}", object=where, next_step=f"Known are: {', '.join(known)}.")
    if options.get("credentials", "ambient") != "ambient":
        raise BadRequest("credentials can only be 'ambient'", object=where, next_step=_KNOWN)
    part_mib = options.get("part_mib", "16")
    if not (part_mib.isdecimal() and 1 <= int(part_mib) <= 1024):
        raise BadRequest(f"part_mib={part_mib!r}", object=where, next_step="Give a number of MiB from 1 to 1024.")
    endpoint = options.get("endpoint")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise BadRequest(
            f"the endpoint {endpoint!r} is no address", object=where, next_step="Give http(s)://HOST:PORT."
        )
    return options


def _client(options: dict[str, str]) -> dict[str, Any]:
    plain = options.get("endpoint", "").startswith("http://")
    return {"allow_http": plain, "connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=300)}


def _s3(bucket: str, prefix: str, keys: tuple[str, str] | None, options: dict[str, str]) -> ObjectStore:
    from obstore.store import S3Store

    settings: dict[str, Any] = {"region": options.get("region", "us-east-1")}
    if "endpoint" in options:
        settings["endpoint"] = options["endpoint"]
        settings["virtual_hosted_style_request"] = options.get("virtual_host") == "true"
    if keys is not None:
        settings["credential_provider"] = _static_keys(keys)
        settings["metadata_endpoint"] = _NOWHERE
    return S3Store(
        bucket,
        prefix=prefix or None,
        client_options=_client(options),  # type: ignore[arg-type]
        retry_config=_RETRIES,  # type: ignore[arg-type]
        **settings,
    )


def _static_keys(keys: tuple[str, str]) -> Any:
    """These keys and no others: a session token in the environment is not mixed in, the machine's role is not asked."""

    def give() -> dict[str, Any]:
        return {"access_key_id": keys[0], "secret_access_key": keys[1], "token": None, "expires_at": None}

    return give


def _gcs(bucket: str, prefix: str, keys: tuple[str, str] | None, options: dict[str, str]) -> ObjectStore:
    from obstore.store import GCSStore

    settings: dict[str, Any] = {}
    if keys is not None:
        settings["service_account_key"] = keys[1]  # the JSON of a service account
    elif "key_file" in options:
        settings["service_account"] = options["key_file"]
    return GCSStore(
        bucket,
        prefix=prefix or None,
        client_options=_client(options),  # type: ignore[arg-type]
        retry_config=_RETRIES,  # type: ignore[arg-type]
        **settings,
    )


def _azure(bucket: str, prefix: str, keys: tuple[str, str] | None, options: dict[str, str]) -> ObjectStore:
    from obstore.store import AzureStore

    settings: dict[str, Any] = {}
    if keys is not None:
        settings |= {"account_name": keys[0], "account_key": keys[1]}
    if "endpoint" in options:
        settings["endpoint"] = options["endpoint"]
    return AzureStore(
        bucket,
        prefix=prefix or None,
        client_options=_client(options),  # type: ignore[arg-type]
        retry_config=_RETRIES,  # type: ignore[arg-type]
        **settings,
    )
