"""The one sink for results: the same listing is padded for people, JSON for scripts, names when quiet.

stdout carries the result and nothing else. Notes, hints and progress go to stderr, so that a pipe never meets them.
"""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from engine.base.progress import Progress, silent
from freetoken_cli.terminal import harmless, is_terminal, may_animate, may_colour, printable, styled

JSON_VERSION = 1
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a listing: its title, the record's key, how the value is shown, and on which side it is aligned."""

    title: str
    key: str
    show: Callable[[Any], str] = str
    right: bool = False


@dataclass(frozen=True)
class Output:
    """Where a command says things.

    as_json and quiet choose the form of results. colour_out and colour_err tell whether that stream gets styles,
    animate whether stderr may rewrite a line.
    """

    stdout: TextIO
    stderr: TextIO
    as_json: bool = False
    quiet: bool = False
    colour_out: bool = False
    colour_err: bool = False
    animate: bool = False

    @staticmethod
    def create(as_json: bool = False, quiet: bool = False, no_color: bool = False) -> Output:
        """The sink on this process's own streams."""
        environment = os.environ
        return Output(
            stdout=sys.stdout,
            stderr=sys.stderr,
            as_json=as_json,
            quiet=quiet,
            colour_out=may_colour(sys.stdout, environment, no_color),
            colour_err=may_colour(sys.stderr, environment, no_color),
            animate=may_animate(sys.stderr, environment) and not quiet,
        )

    def listing(self, kind: str, columns: Sequence[Column], records: Sequence[Record]) -> None:
        """Print `records`: JSON {"version", kind: [...]}, or their names when quiet, or a padded table."""
        if self.as_json:
            self.document({kind: [dict(record) for record in records]})
        elif self.quiet:
            for record in records:
                self.line(printable(str(record["name"])))
        else:
            self.table(columns, records)

    def table(self, columns: Sequence[Column], records: Sequence[Record]) -> None:
        """Print `records` in padded columns under their titles."""
        cells = [[printable(column.show(record[column.key])) for column in columns] for record in records]
        for number, row in enumerate(pad([[column.title for column in columns], *cells], columns)):
            self.line(styled(row, "1", self.colour_out) if number == 0 else row)

    def facts(self, document: Record, rows: Sequence[tuple[str, str]], name: str) -> None:
        """Print one thing: its `document` as JSON, or `name` alone when quiet, or `rows` of label and value."""
        if self.as_json:
            self.document(document)
        elif self.quiet:
            self.line(printable(name))
        else:
            width = max((cell_width(label) for label, _ in rows), default=0)
            for label, value in rows:
                gap = " " * (width - cell_width(label) + 2)
                self.line(f"{styled(label, '1', self.colour_out)}{gap}{printable(value)}".rstrip())

    def document(self, document: Record) -> None:
        """Print `document` as JSON with a version in it."""
        body = {"version": JSON_VERSION, **document}
        self.line(json.dumps(body, indent=2, ensure_ascii=False, default=str))

    def line(self, text: str) -> None:
        """Print a line of the result."""
        with naming_stdout():
            self.stdout.write(f"{text}\n")

    def text(self, text: str) -> None:
        """Write a piece of a streamed result at once, without a line end of its own; to a pipe as it is."""
        with naming_stdout():
            self.stdout.write(harmless(text) if is_terminal(self.stdout) else text)
            self.stdout.flush()

    def aside(self, text: str) -> None:
        """Write a piece of what the model thinks: dimmed, and on stderr, because it is not the answer."""
        if not self.quiet:
            self.stderr.write(styled(harmless(text), "2", self.colour_err))
            self.stderr.flush()

    def note(self, text: str) -> None:
        """Tell the person something that is not the result. Quiet commands keep it to themselves."""
        if not self.quiet:
            self.stderr.write(f"{styled(harmless(text), '2', self.colour_err)}\n")
            self.stderr.flush()

    def warn(self, text: str) -> None:
        """Tell the person something they must know, quiet or not."""
        self.stderr.write(f"{styled('Warning:', '33', self.colour_err)} {harmless(text)}\n")
        self.stderr.flush()

    @property
    def can_ask(self) -> bool:
        """Whether a person could see a question and answer it."""
        return is_terminal(sys.stdin) and is_terminal(self.stderr)

    def confirm(self, question: str, yes: bool) -> bool:
        """Ask on the terminal; without one only `--yes` agrees, because a script can answer nothing."""
        if yes:
            return True
        if not self.can_ask:
            return False
        self.stderr.write(f"{question} [y/N] ")
        self.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    @contextmanager
    def waiting(self, title: str) -> Iterator[None]:
        """A wait that is usually short: a line that a terminal sees while it lasts, and nobody else ever."""
        if not self.animate:
            yield
            return
        self.stderr.write(styled(f"{title} ...", "2", self.colour_err))
        self.stderr.flush()
        try:
            yield
        finally:
            self.stderr.write("\r\x1b[K")
            self.stderr.flush()

    @contextmanager
    def phase(self, title: str, sizes: bool = True) -> Iterator[Progress]:
        """A long phase: a moving bar where stderr can show one, else one line when it starts.

        Its progress counts bytes, or with `sizes` False just steps; a total of 0 is not known yet.
        """
        if self.animate:
            from freetoken_cli.progress import Moving

            with Moving(self.stderr, title, sizes, self.colour_err) as progress:
                yield progress.update
        else:
            self.note(title)
            yield silent


@contextmanager
def naming_stdout() -> Iterator[None]:
    """Lets a failure to write the result name stdout, where the system names no file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or "stdout"
        raise


def cell_width(text: str) -> int:
    """Terminal cells that `text` takes: two for East Asian wide characters, none for combining ones."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def pad(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> list[str]:
    """Lines with every cell padded to its column's widest, two spaces between, no trailing spaces."""
    widths = [max(cell_width(row[i]) for row in rows) for i in range(len(columns))]
    lines = []
    for row in rows:
        cells = []
        for cell, width, column in zip(row, widths, columns, strict=True):
            gap = " " * (width - cell_width(cell))
            cells.append(gap + cell if column.right else cell + gap)
        lines.append("  ".join(cells).rstrip())
    return lines
