"""Staying with a task: its lines here as they come, Ctrl-C as a question, its exit code as ours.

An interrupt is taken only while nothing is half done: between two lines it is raised at once, inside one it waits for
its end. So whatever the answer is, the output goes on exactly where it was.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING

import typer

from clutch.cli.notices import Notices
from clutch.cli.printing import Exact, line_text
from clutch.sdk import calls
from clutch.sdk.output import Follower, output_query
from clutch.wire.errors import ClutchError, IllegalMove, NotFound
from clutch.wire.messages import ExitCause
from clutch.wire.outcomes import EndReason
from clutch.wire.output import OutputLine

if TYPE_CHECKING:
    from clutch.sdk.task import Task
    from clutch.wire.api import TaskDetail

OWN = f"({ExitCause.OWN})"
SIGNALLED = 128
QUESTION = "\n[d]etach and let it run, [c]ancel it, [k]ill it, or Enter to go on? "


class Wish(StrEnum):
    GO_ON = ""
    DETACH = "d"
    CANCEL = "c"
    KILL = "k"


class Interrupted(Exception):
    """Somebody pressed Ctrl-C, or asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts:
    """Signals as exceptions, at points where they do no harm."""

    def __init__(self) -> None:
        self._armed = False
        self._pending = 0

    @contextmanager
    def handled(self) -> Iterator[None]:
        """While this lasts, SIGINT and SIGTERM are ours."""
        before = {number: signal.signal(number, self._came) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Inside, a signal is raised as ``Interrupted``; what came before is raised at once."""
        self._armed = True
        try:
            self._raise()
            yield
        finally:
            self._armed = False

    def _came(self, number: int, frame: FrameType | None) -> None:
        self._pending = number
        if self._armed:
            self._raise()

    def _raise(self) -> None:
        number, self._pending = self._pending, 0
        if number:
            self._armed = False
            raise Interrupted(number)


class Attached:
    """This terminal and one task."""

    def __init__(
        self, task: Task, ask: Callable[[], Wish] | None, interrupts: Interrupts, *, labels: bool = False
    ) -> None:
        self.task = task
        self.ask = ask
        """Asks its user; None where nobody can answer: then an interrupt cancels."""
        self.labels = labels
        """Whole lines, each with its member before it, rather than every byte as it comes."""
        self.follower = Follower(output_query(task.id, partial=not labels))
        self.exact = Exact(self._fetch)
        self.notices = Notices(task, loud=ask is not None)
        self.interrupts = interrupts
        self.cancelled = False

    def stay(self) -> int | None:
        """The task's exit code once it has ended and all it printed was shown; None if its user detached."""
        with self.notices:
            while True:
                try:
                    self._show()
                    with self.interrupts.armed():
                        return exit_code(self.task.detail())
                except Interrupted as interrupt:
                    wish = self._asked(interrupt)
                    if wish is Wish.DETACH:
                        return None
                    self._do(wish)

    def _show(self) -> None:
        lines = self.task.follow(self.follower, self.notices.away)
        while True:
            with self.interrupts.armed():
                if next(lines, None) is None:
                    return
                self.notices.came()
                run = self.exact.run(self.follower.unshown)
                data = self._text(run) if self.labels else self.exact.data(run)
            self._write(run[0], data)
            self.exact.passed(run)
            for line in run:
                self.follower.passed(line)

    def _text(self, run: tuple[OutputLine, ...]) -> bytes:
        return "".join(line_text(line, label=True) for line in run).encode("utf-8", "replace")

    def _write(self, line: OutputLine, data: bytes) -> None:
        """To where it belongs, at once. Where nobody reads any more, the task need not go on."""
        stream = sys.stdout if line.stream == "stdout" and line.kind == "line" else sys.stderr
        try:
            stream.buffer.write(data)
            stream.buffer.flush()
        except BrokenPipeError:
            self._do(Wish.CANCEL)
            sys.stdout = sys.stderr  # nothing more is written there, not even at the end
            raise typer.Exit(SIGNALLED + signal.SIGPIPE) from None

    def _fetch(self, line: OutputLine, start: int, stop: int) -> bytes:
        try:
            return b"".join(self.task.client.pieces(calls.raw_output(line, start, stop)))
        except NotFound:  # gone since: what was read of it is what there is
            return line.text.encode("utf-8", "replace") + b"\n"

    def _asked(self, interrupt: Interrupted) -> Wish:
        """What is wanted. The second Ctrl-C, at the question or after it, cancels; one after that kills."""
        if self.cancelled:
            return Wish.KILL
        if self.ask is None or interrupt.number == signal.SIGTERM:
            return Wish.CANCEL
        try:
            with self.interrupts.armed():
                return self.ask()
        except (Interrupted, EOFError):
            return Wish.CANCEL

    def _do(self, wish: Wish) -> None:
        try:
            if wish is Wish.CANCEL:
                self.cancelled = True
                typer.echo(f"clutch: {self.task.id} is asked to leave; Ctrl-C again kills it", err=True)
                self.task.stop()
            elif wish is Wish.KILL:
                typer.echo(f"clutch: {self.task.id} is being killed", err=True)
                self.task.kill()
        except IllegalMove:
            return  # it has ended meanwhile
        except ClutchError as error:
            typer.echo(f"clutch: {error}", err=True)


def ask_terminal() -> Wish:
    """The question, on the terminal itself."""
    while True:
        sys.stderr.write(QUESTION)
        sys.stderr.flush()
        said = sys.stdin.readline()
        if not said:
            raise EOFError
        word = said.strip().lower()[:1]
        if word in tuple(Wish):
            return Wish(word)


def exit_code(detail: TaskDetail) -> int:
    """A task's exit code as a shell gives it: 128 and the signal for what a signal ended."""
    code = detail.exit_code
    if code is None:
        task = detail.task
        words = task.detail or task.reason or task.state
        typer.echo(f"clutch: {task.key} ended without an exit code: {words}", err=True)
        return 1
    if detail.task.reason == EndReason.FAILED and not detail.task.detail.endswith(OWN):
        typer.echo(f"clutch: {detail.task.detail}", err=True)  # its own exit needs no words, any other does
    return SIGNALLED - code if code < 0 else code
