"""Which files of a working directory stay at home: ``.clutchignore``, in the syntax of gitignore. Pure.

The rules are git's own, to the byte: the last pattern that matches decides, ``!`` takes back, a slash at the beginning
or in the middle ties a pattern to the folder of its file, a slash at the end makes it one for folders, ``*`` and ``?``
stop at a slash, ``**`` does not. What lies in an ignored folder cannot be taken back, because nobody looks there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

FILE_NAME = ".clutchignore"
DEFAULTS = (
    b".git/", b".git", b".hg/", b".svn/", b"__pycache__/", b"*.py[co]", b".venv/", b"venv/", b"node_modules/",
    b".mypy_cache/", b".ruff_cache/", b".pytest_cache/", b".ipynb_checkpoints/", b".tox/", b".DS_Store",
    b"clutch-runs/", b"**/.local/share/clutch/", b"**/.config/clutch/",
)  # fmt: skip
"""Left at home unless a ``.clutchignore`` takes them back with ``!``. The last three are ours: what runs off a cluster
left, and for somebody who works in their home the cluster's own files and keys, which change while they are packed."""

SPECIAL = b"*?[\\"
SLASH, BACKSLASH, SPACE = b"/\\ "
CLASSES: dict[bytes, bytes] = {
    b"alnum": b"0-9A-Za-z", b"alpha": b"A-Za-z", b"blank": rb"\t ", b"cntrl": rb"\x00-\x1f\x7f", b"digit": b"0-9",
    b"graph": rb"\x21-\x7e", b"lower": b"a-z", b"print": rb"\x20-\x7e",
    b"punct": rb"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e", b"space": rb"\t-\r ", b"upper": b"A-Z", b"xdigit": b"0-9A-Fa-f",
}  # fmt: skip


class Rule(msgspec.Struct, frozen=True):
    """One pattern, ready to be matched. ``base`` is the folder of its file, relative to the root, ending in a slash."""

    expression: re.Pattern[bytes]
    base: bytes = b""
    takes_back: bool = False
    folders_only: bool = False
    by_name: bool = False

    def matches(self, path: bytes, is_folder: bool) -> bool:
        if (self.folders_only and not is_folder) or not path.startswith(self.base):
            return False
        inner = path[len(self.base) :]
        subject = inner.rpartition(b"/")[2] if self.by_name else inner
        return self.expression.fullmatch(subject) is not None


def is_ignored(rules: Iterable[Rule], path: bytes, is_folder: bool) -> bool:
    """Whether the last rule that matches a path (relative to the root, without a slash at its ends) leaves it out.

    ``rules`` come in the order of their weight: defaults, the root's file, then those of deeper folders.
    """
    ignored = False
    for rule in rules:
        if rule.takes_back == ignored and rule.matches(path, is_folder):
            ignored = not ignored
    return ignored


def parse_rules(text: bytes, base: bytes = b"") -> tuple[Rule, ...]:
    """The rules of one file that lies in ``base``."""
    lines = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return tuple(rule for line in lines if (rule := parse_rule(line, base)) is not None)


def default_rules() -> tuple[Rule, ...]:
    return parse_rules(b"\n".join(DEFAULTS))


def parse_rule(line: bytes, base: bytes = b"") -> Rule | None:
    """One line as a rule; None for a comment, nothing, or a pattern that can match nothing."""
    if line.startswith(b"#"):
        return None
    pattern = _without_trailing_spaces(line.removesuffix(b"\r")).partition(b"\0")[0]
    takes_back = pattern.startswith(b"!")
    pattern = pattern.removeprefix(b"!")
    folders_only = pattern.endswith(b"/")
    pattern = pattern.removesuffix(b"/")
    by_name = b"/" not in pattern
    pattern = pattern.removeprefix(b"/")
    expression = translate(pattern) if pattern else None
    if expression is None:
        return None
    return Rule(re.compile(expression, re.DOTALL), base, takes_back, folders_only, by_name)


def _without_trailing_spaces(line: bytes) -> bytes:
    """Spaces at the end do not count, unless a backslash stands before them."""
    keep = at = 0
    while at < len(line):
        if line[at] == BACKSLASH:
            at += 2
            keep = min(at, len(line))
            continue
        at += 1
        if line[at - 1] != SPACE:
            keep = at
    return line[:keep]


def translate(pattern: bytes) -> bytes | None:
    """A pattern as a regular expression over bytes, as git's wildmatch reads it; None if it can match nothing."""
    parts: list[bytes] = []
    first_special = next((at for at, byte in enumerate(pattern) if byte in SPECIAL), len(pattern))
    at = 0
    while at < len(pattern):
        byte = pattern[at : at + 1]
        if byte == b"*":
            part, at = _stars(pattern, at, first_special)
        elif byte == b"?":
            part, at = b"[^/]", at + 1
        elif byte == b"[":
            found = _set(pattern, at)
            if found is None:
                return None
            part, at = found
        elif byte == b"\\":
            if at + 1 == len(pattern):
                return None
            part, at = re.escape(pattern[at + 1 : at + 2]), at + 2
        else:
            part, at = re.escape(byte), at + 1
        parts.append(part)
    return b"".join(parts)


def _stars(pattern: bytes, at: int, first_special: int) -> tuple[bytes, int]:
    """One or more stars. Two or more that fill a whole step of the path also cross slashes. Git compares what stands
    before the first special character apart, so stars right behind it count as if they began the path."""
    end = at
    while pattern[end : end + 1] == b"*":
        end += 1
    begins = at == first_special or pattern[at - 1] == SLASH
    rest = pattern[end:]
    if end - at < 2 or not begins or not (not rest or rest.startswith((b"/", b"\\/"))):
        return b"[^/]*", end
    if rest.startswith(b"/"):
        return b"(?:.*/)?", end + 1
    return b".*", end


def _set(pattern: bytes, at: int) -> tuple[bytes, int] | None:
    """``[...]``: one byte of a set, never a slash. None where it has no end or names an unknown class."""
    at += 1
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    members: list[bytes] = []
    previous: int | None = None
    first = True
    while True:
        byte = pattern[at : at + 1]
        if not byte:
            return None
        if byte == b"]" and not first:
            break
        first = False
        if byte == b"[" and pattern[at + 1 : at + 2] == b":":
            end = pattern.find(b"]", at + 2)
            if end < 0:
                return None
            if end > at + 2 and pattern[end - 1 : end] == b":":
                named = CLASSES.get(pattern[at + 2 : end - 1])
                if named is None:
                    return None
                members.append(named)
                previous, at = None, end + 1
                continue
        elif byte == b"-" and previous is not None and pattern[at + 1 : at + 2] not in (b"", b"]"):
            at += 1
            if pattern[at : at + 1] == b"\\":
                at += 1
            last = pattern[at : at + 1]
            if not last:
                return None
            if previous <= last[0]:
                members.append(_hex(previous) + b"-" + _hex(last[0]))
            previous, at = None, at + 1
            continue
        elif byte == b"\\":
            at += 1
            byte = pattern[at : at + 1]
            if not byte:
                return None
        members.append(_hex(byte[0]))
        previous, at = byte[0], at + 1
    inner = b"".join(members)
    if negated:
        return b"[^/" + inner + b"]", at + 1
    return (b"(?!/)[" + inner + b"]" if inner else b"(?!)"), at + 1


def _hex(byte: int) -> bytes:
    return b"\\x%02x" % byte
