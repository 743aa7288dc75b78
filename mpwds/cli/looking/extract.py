"""``mpwds extract``: fields of shards as files."""

from __future__ import annotations

from typing import Annotated

import typer

from mpwds.cli.looking.options import Fields, Keys, Limit, Numbers, Shards, Where
from mpwds.cli.options import Force, Json

Output = Annotated[str, typer.Option("--output", "-o", metavar="FOLDER", help="Where the files go.")]


def extract(
    shards: Shards,
    output: Output,
    key: Keys = None,
    number: Numbers = "",
    where: Where = "",
    fields: Fields = "",
    limit: Limit = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Write fields of shards to files in a folder, under the names that they have in the shard.

    No file is written outside of the folder, and none is replaced without --force. Samples that damage may
    have made incomplete are left out, and named on standard error; the exit status is 1 then.
    """
    from mpwds.cli.looking.samples.choosing import make_choice
    from mpwds.cli.looking.samples.sources import shards_of
    from mpwds.cli.looking.writing import Whole, write_files
    from mpwds.cli.outputs import report
    from mpwds.viewing.wording import counted

    samples = Whole(shards_of(shards), make_choice(key, number, where, fields, limit))
    count, files = write_files(samples, output, force)
    values = {"samples": count, "files": files, "output": output, "problems": samples.problems}
    report(json, values, f"wrote {counted(files, 'file')} of {counted(count, 'sample')} to {output}")
    return int(samples.problems > 0)
