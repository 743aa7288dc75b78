"""``mpwds cat``: fields or samples of shards on standard output."""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

from mpwds.cli.looking.options import Fields, Keys, Limit, Numbers, Shards, Where
from mpwds.cli.options import Json

Tar = Annotated[bool, typer.Option("--tar", help="Write a tar shard of the samples, to a pipe or a file.")]
Whole = Annotated[
    bool, typer.Option("--shards", help="Join whole shards into one, as `mpwds merge SHARDS... -` does.")
]
Lines = Annotated[bool, typer.Option("--lines", help="End each field with a newline.")]


def cat(
    shards: Shards,
    key: Keys = None,
    number: Numbers = "",
    where: Where = "",
    fields: Fields = "",
    limit: Limit = None,
    lines: Lines = False,
    json: Json = False,
    tar: Tar = False,
    whole: Whole = False,
) -> int:
    """Write fields of shards to standard output, one behind the other, as they are stored.

    With --json, each sample is a line, with text, numbers and structures decoded and other fields in base64;
    with --tar, the samples become a shard. Samples that damage may have made incomplete are left out, and
    named on standard error; the exit status is 1 then.
    """
    if json + tar + lines + whole > 1:
        raise typer.BadParameter("--json, --tar, --lines and --shards exclude each other")
    if whole:
        if key or number or where or fields or limit is not None:
            raise typer.BadParameter("--shards joins whole shards: choose samples and fields with --tar")
        from mpwds.cli.resharding.commands import merge

        merge(shards, "-")
        return 0
    from mpwds.cli.looking.samples.choosing import make_choice
    from mpwds.cli.looking.samples.sources import shards_of
    from mpwds.cli.looking.writing import Whole, write_fields, write_json, write_tar

    samples = Whole(shards_of(shards), make_choice(key, number, where, fields, limit))
    try:
        if json:
            write_json(samples)
        elif tar:
            write_tar(samples, sys.stdout.buffer)
        else:
            write_fields(samples, sys.stdout.buffer, b"\n" if lines else b"")
        sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            error.filename = "standard output"
        raise
    return int(samples.problems > 0)
