"""The master key: it seals secrets and signs members' tokens.

There may be several, newest first: the newest seals and signs, all of them open and verify, so that a new key harms
neither a stored secret nor a member that runs. Each use has a key of its own, derived from the master key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from clutch.wire.errors import BadRequest, Corrupt

FILE = "master.key"
CHARACTERS_MIN = 32
_NONCE_BYTES = 12


def _derived(key: str, use: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=f"clutch {use}".encode()).derive(key.encode())


class _Key:
    """One master key and what is derived from it."""

    __slots__ = ("id", "seal", "sign", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.id = _derived(text, "id").hex()[:16]
        self.seal = AESGCM(_derived(text, "seal"))
        self.sign = _derived(text, "sign")


class MasterKeys:
    """All master keys of a cluster, newest first. Never shown: its ``repr`` names ids only."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        for text in texts:
            if len(text) < CHARACTERS_MIN or not text.isprintable():
                raise BadRequest(
                    f"a master key has at least {CHARACTERS_MIN} printable characters",
                    object="master key",
                    next_step="Make one with 'openssl rand -hex 32'.",
                )
        if not texts:
            raise BadRequest("there is none", object="master key", next_step="Give one, or let the master make it.")
        self._keys = tuple(_Key(text) for text in dict.fromkeys(texts))

    def __repr__(self) -> str:
        return f"MasterKeys({', '.join(key.id for key in self._keys)})"

    @property
    def newest(self) -> str:
        """The id of the key that seals now."""
        return self._keys[0].id

    def seal(self, plain: bytes, place: str) -> bytes:
        """Sealed bytes that can be opened only with this key and only as this place's."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._keys[0].seal.encrypt(nonce, plain, place.encode())

    def open(self, key_id: str, sealed: bytes, place: str) -> bytes:
        for key in self._keys:
            if key.id == key_id:
                try:
                    return key.seal.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place.encode())
                except (InvalidTag, ValueError) as error:
                    raise Corrupt("its seal is broken", object=place, next_step="Put the secret again.") from error
        raise Corrupt(
            f"it is sealed with master key {key_id}, which this master was not given",
            object=place,
            next_step="Start the master with that key as well (NEW,OLD), or put the secret again.",
        )

    def sign(self, message: bytes) -> bytes:
        return hmac.digest(self._keys[0].sign, message, hashlib.sha256)

    def signed(self, message: bytes, signature: bytes) -> bool:
        """Whether one of the keys made this signature; compared in constant time."""
        found = False
        for key in self._keys:
            found |= hmac.compare_digest(hmac.digest(key.sign, message, hashlib.sha256), signature)
        return found

    def with_new(self) -> MasterKeys:
        """The same keys behind a fresh one."""
        return MasterKeys((new_key(), *(key.text for key in self._keys)))

    def become(self, others: MasterKeys) -> None:
        """Be those keys from now on, for everybody who holds this object."""
        self._keys = others._keys

    def write(self, path: Path) -> None:
        """Replace the file that keeps them, for its owner alone and on the platter before the old one goes."""
        draft = path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("".join(f"{key.text}\n" for key in self._keys))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def new_key() -> str:
    return secrets.token_hex(32)


def load_keys(given: str, folder: Path) -> MasterKeys:
    """The keys that were given (``NEW,OLD``), or those kept in the data folder, made at the first start."""
    if given:
        return MasterKeys(tuple(key.strip() for key in given.split(",")))
    path = folder / FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        keys = MasterKeys((new_key(),))
        keys.write(path)
        return keys
    if path.stat().st_mode & 0o077:
        raise BadRequest(
            "others may read it", object=str(path), next_step=f"Run 'chmod 600 {path}', and rotate the key."
        )
    return MasterKeys(tuple(path.read_text().split()))
