"""Where checkpoints are kept, as it is written: one type for each kind of place. Credentials are secrets, by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from clutch.workloads.experiment.config.model_base import Folder, Line, Prefix, SecretName, Whole, Written, wrong

Kept = Annotated[Whole, Field(ge=0, le=1_000_000)]


def _url(value: str) -> str:
    if not value.startswith(("http://", "https://")) or any(sign in value for sign in " ?#@"):
        raise wrong(f"{value[:200]!r} is not an address", "Write https://HOST:PORT, without a password.")
    return value


def _hdfs(value: str) -> str:
    if not value.startswith(("hdfs://", "viewfs://")) or any(sign in value for sign in " ?#@"):
        raise wrong(f"{value[:200]!r} is not an address of HDFS", "Write hdfs://HOST:PORT/FOLDER.")
    return value


def _bucket(value: str) -> str:
    if not value or any(sign in value for sign in " /:@?#\0"):
        raise wrong(f"{value[:100]!r} is not the name of a bucket", "Write its name alone; a folder in it is 'prefix'.")
    return value


def class_named(value: str) -> str:
    module, colon, name = value.partition(":")
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise wrong(f"{value[:100]!r} does not name a class", "Write MODULE:CLASS, of your own code.")
    return value


Url = Annotated[str, AfterValidator(_url)]
Bucket = Annotated[str, AfterValidator(_bucket)]


class WrittenStorage(Written):
    """What all places have: which checkpoints stay when an experiment is over."""

    save_experiment_best: Kept = Field(0, description="The best so many of the experiment stay.")
    save_trial_best: Kept = Field(1, description="The best so many of each trial stay.")
    save_trial_latest: Kept = Field(1, description="The latest so many of each trial stay.")


class WrittenWorkspace(WrittenStorage):
    """The workspace's own blobs."""

    type: Literal["workspace"] = "workspace"


class WrittenSharedFs(WrittenStorage):
    """A folder that all nodes see under one path."""

    type: Literal["shared_fs"]
    host_path: Folder = Field(description="The folder on every node.")
    storage_path: Annotated[str, Field(max_length=400)] | None = Field(None, description="A folder in host_path.")


class WrittenDirectory(WrittenStorage):
    """A folder that the program sees, by a mount of yours or as it is."""

    type: Literal["directory"]
    container_path: Folder


class WrittenS3(WrittenStorage):
    """A bucket of S3, or of a server that speaks like it."""

    type: Literal["s3"]
    bucket: Bucket
    prefix: Prefix | None = None
    endpoint_url: Url | None = Field(None, description="Of a server that is not Amazon's.")
    region: Line | None = None
    credentials: SecretName | None = Field(
        None, description="The secret that holds KEY:SECRET; none: those of the machine's surroundings."
    )


class WrittenGcs(WrittenStorage):
    """A bucket of Google Cloud Storage."""

    type: Literal["gcs"]
    bucket: Bucket
    prefix: Prefix | None = None
    key_file: Folder | None = Field(None, description="A service account's key, a file that every node has.")


class WrittenAzure(WrittenStorage):
    """A container of Azure Blob Storage."""

    type: Literal["azure"]
    container: Bucket
    account: Bucket | None = None
    account_url: Url | None = Field(None, description="Of a cloud that is not the public one.")
    prefix: Prefix | None = None
    credentials: SecretName | None = Field(
        None, description="The secret that holds ACCOUNT:KEY; none: those of the machine's surroundings."
    )


class WrittenHdfs(WrittenStorage):
    """A folder of HDFS: its address, or host, port and path."""

    type: Literal["hdfs"]
    url: Annotated[str, AfterValidator(_hdfs)] | None = None
    host: Bucket | None = None
    port: Whole | None = Field(None, ge=1, le=65535)
    path: Folder | None = None


class WrittenClass(WrittenStorage):
    """A class of your own code that keeps them."""

    type: Literal["class"]
    class_: Annotated[str, AfterValidator(class_named)] = Field(alias="class", description="MODULE:CLASS.")
    options: dict[str, Any] = Field({}, description="Its keyword arguments.")


STORAGES: dict[str, type[WrittenStorage]] = {
    "workspace": WrittenWorkspace, "shared_fs": WrittenSharedFs, "directory": WrittenDirectory, "s3": WrittenS3,
    "gcs": WrittenGcs, "azure": WrittenAzure, "hdfs": WrittenHdfs, "class": WrittenClass,
}  # fmt: skip
CheckpointStorage = Annotated[
    WrittenWorkspace
    | WrittenSharedFs
    | WrittenDirectory
    | WrittenS3
    | WrittenGcs
    | WrittenAzure
    | WrittenHdfs
    | WrittenClass,
    Field(discriminator="type"),
]
