"""What every part of a written configuration has in common: unknown keys are errors, nothing is converted silently."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from clutch.core.checks import NAME

SIZES = {
    "": 1, "b": 1, "k": 2**10, "kib": 2**10, "kb": 10**3, "m": 2**20, "mib": 2**20, "mb": 10**6, "g": 2**30,
    "gib": 2**30, "gb": 10**9, "t": 2**40, "tib": 2**40, "tb": 10**12, "p": 2**50, "pib": 2**50, "pb": 10**15,
}  # fmt: skip
_TRUTH = {"yes": True, "on": True, "no": False, "off": False}
BYTES_MAX = 2**50


class Written(BaseModel):
    """A part of what a user wrote."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def wrong(problem: str, hint: str = "") -> PydanticCustomError:
    """What a validator raises: a problem in our words. Braces would be taken for a template's."""
    return PydanticCustomError("wrong", "{problem}", {"problem": problem, "hint": hint})


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _truth(value: Any) -> Any:
    return _TRUTH.get(value.lower(), value) if isinstance(value, str) else value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise wrong(f"{value} is not a finite number", "Write a number.")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise wrong(f"{str(value).lower()} is not a number", "Write a number.")
    return value


def size_in(value: Any) -> int:
    """``1.5G``, ``512 MiB`` or a number of bytes. Units without a B, or with iB, are powers of two."""
    text = str(value).strip() if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
    found = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-zA-Z]*)", text)
    if found is None or found[2].lower() not in SIZES:
        raise wrong(f"{value!r} is not an amount of memory", "Write 512M, 1.5G, or a number of bytes.")
    amount = int(float(found[1]) * SIZES[found[2].lower()])
    if amount >= BYTES_MAX:
        raise wrong(f"{value!r} is more memory than there is", "Write 512M, 1.5G, or a number of bytes.")
    return amount


def _size(value: Any) -> Any:
    size_in(value)
    return value


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise wrong(f"{value[:80]!r} is not a name", "Use letters, digits, '.', '_' and '-', at most 128.")
    return value


def _secret(value: Any) -> Any:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise wrong(
            "it does not name a secret",
            "Keep the value with 'clutch secret put NAME' and write NAME here: what stands here is written down.",
        )
    return value


def _line(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise wrong(f"{value[:80]!r} is not one line of text", "Write letters that can be printed.")
    return value


def _folder(value: str) -> str:
    if not value.startswith("/") or ".." in value.split("/") or "\0" in value:
        raise wrong(f"{value[:200]!r} is not an absolute path", "Begin with '/', and leave '..' out.")
    return value


def _target(value: str) -> str:
    """Where a mount appears: anywhere in a container, inside the working directory of a process."""
    parts = value.split("/")
    if ".." in parts or "\0" in value or not any(part not in ("", ".") for part in parts):
        hint = "Begin with '/', or name a place in the working directory; leave '..' out."
        raise wrong(f"{value[:200]!r} is not an absolute path, nor one in the working directory", hint)
    return value


def _prefix(value: str) -> str:
    if ".." in value.split("/") or "\0" in value or "\\" in value:
        raise wrong(f"{value[:200]!r} leads out of its place", "Leave '..' out.")
    return value


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        hint = "Put a backslash before a sign that stands for itself."
        raise wrong(f"it is not a regular expression: {error}", hint) from None
    return value


def _word(value: str) -> str:
    if "," in value or not value.strip() or not value.isprintable():
        raise wrong(f"{value[:80]!r} is not a label", "Write one line without commas.")
    return value


def _command(value: Any) -> Any:
    if not isinstance(value, str) and not (isinstance(value, list) and all(isinstance(word, str) for word in value)):
        raise wrong("it is neither a line nor a list of words", "Write 'python train.py', or [python, train.py].")
    return value


Command = Annotated[str | list[str], BeforeValidator(_command)]
Whole = Annotated[int, BeforeValidator(_whole)]
Flag = Annotated[bool, BeforeValidator(_truth)]
Number = Annotated[float, BeforeValidator(_number), AfterValidator(_finite)]
Name = Annotated[str, AfterValidator(_name)]
SecretName = Annotated[str, BeforeValidator(_secret)]
Line = Annotated[str, Field(max_length=200), AfterValidator(_line)]
Label = Annotated[str, Field(max_length=100), AfterValidator(_word)]
Folder = Annotated[str, AfterValidator(_folder)]
Target = Annotated[str, AfterValidator(_target)]
Prefix = Annotated[str, Field(max_length=400), AfterValidator(_prefix)]
Pattern = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_regex)]
Size = Annotated[Any, BeforeValidator(_size), WithJsonSchema({"type": ["integer", "string"], "examples": ["1.5G"]})]
