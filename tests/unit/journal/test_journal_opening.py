"""Addresses, and what is said when a journal cannot be opened."""

from pathlib import Path

import pytest

from clutch.backends.journal.memory import MemoryJournal
from clutch.backends.journal.opening import open_journal
from clutch.backends.journal.postgres_faults import address_of
from clutch.backends.journal.sqlite import SqliteJournal
from clutch.testing.journal_suite import make_rows, refused
from clutch.wire.errors import BadRequest, Corrupt, Unavailable
from clutch.wire.journal import Batch


async def test_each_address_opens_its_own_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(await open_journal("memory:"), MemoryJournal)
    for address in (f"{tmp_path}/a/new/folder/x.db", f"sqlite:///{tmp_path}/a/new/folder/x.db", "sqlite:///r.db"):
        journal = await open_journal(address)
        assert isinstance(journal, SqliteJournal)
        lead = await journal.lead("a", 0.0)
        await journal.append(Batch(make_rows(lead, lead.last_index + 1, 1)))
        await journal.close()
        await journal.close()
    again = await open_journal(f"{tmp_path}/a/new/folder/x.db")
    assert len(await again.read(0)) == 2
    await again.close()
    assert {path.name for path in sorted(tmp_path.rglob("*.db"))} == {"x.db", "r.db"}  # noqa: ASYNC240


@pytest.mark.parametrize("address", ["", "mysql://root@host/db", "sqlite:", "sqlite:///", "sqlite://x.db"])
async def test_bad_addresses(address: str) -> None:
    error = await refused(BadRequest, open_journal(address))
    assert "postgresql://" in error.next_step


async def test_an_unreachable_server_is_named_without_its_password() -> None:
    error = await refused(Unavailable, open_journal("postgresql://ann:s3cret@127.0.0.1:1/clutch"))
    assert error.object == "postgresql://127.0.0.1:1/clutch"
    assert "s3cret" not in str(error)
    assert error.next_step


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql://u:p@db.example:6000/clutch?sslmode=require", "postgresql://db.example:6000/clutch"),
        ("postgresql://u:p@/clutch?host=%2Frun%2Fpg", "postgresql:///run/pg/clutch"),
        ("postgres://u:p%40@[::1]/x", "postgresql://::1/x"),
    ],
)
def test_addresses_never_show_a_password(url: str, address: str) -> None:
    assert address_of(url) == address


async def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"these are not the rows you are looking for" * 100)
    assert "notes.txt" in (await refused(Corrupt, open_journal(str(path)))).object


async def test_a_folder_is_no_journal(tmp_path: Path) -> None:
    await refused(Unavailable, open_journal(str(tmp_path)))


async def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    await refused(Unavailable, open_journal(str(tmp_path / "file" / "journal.db")))
