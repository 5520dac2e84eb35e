"""Tokens as text: what is said, what is kept of it, and a member's token, which is not kept at all.

A stored token is 256 random bits behind a prefix that says what it is (so that scanners for leaked secrets find it);
the database has only its SHA-256. A member's token carries the member and its fence, signed with the master key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets

import msgspec

from clutch.master.access.keys import MasterKeys
from clutch.wire.access import TokenKind
from clutch.wire.ids import Fence, MemberId

LENGTH_MAX = 2048
_PREFIX = {
    TokenKind.SESSION: "clutch_s_",
    TokenKind.PERSONAL: "clutch_p_",
    TokenKind.ONE_TIME: "clutch_o_",
    TokenKind.ENROL: "clutch_e_",
    TokenKind.AGENT: "clutch_a_",
}
TASK_PREFIX = "clutch_t_"
_PURPOSE = b"task token\n"
"""The same key signs other things too; what was signed as one of them is not taken for another."""


class _Claim(msgspec.Struct, frozen=True, array_like=True):
    member: MemberId
    fence: Fence


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Claim)


def new_token(kind: TokenKind) -> str:
    return _PREFIX[kind] + secrets.token_urlsafe(32)


def hash_of(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _data(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def task_token(member: MemberId, fence: Fence, keys: MasterKeys) -> str:
    """The token of one incarnation: the same each time it is asked for."""
    claim = _encoder.encode(_Claim(member, fence))
    return _task_text(claim, keys.sign(_PURPOSE + claim))


def _task_text(claim: bytes, signature: bytes) -> str:
    return f"{TASK_PREFIX}{_text(claim)}.{_text(signature)}"


def read_task_token(token: str, keys: MasterKeys) -> tuple[MemberId, Fence] | None:
    """Whose token this is, or None when we never signed it."""
    claim_text, _, signature_text = token.removeprefix(TASK_PREFIX).partition(".")
    try:
        claim, signature = _data(claim_text), _data(signature_text)
    except (binascii.Error, ValueError):
        return None
    one_spelling = _task_text(claim, signature) == token
    if not one_spelling or not keys.signed(_PURPOSE + claim, signature):
        return None
    try:
        found = _decoder.decode(claim)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found.member, found.fence
