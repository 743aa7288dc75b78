"""MDS datasets for the tests of what writes and reads them."""

from mpwds import MDSWriter

COLUMNS = {"text": "str", "number": "int"}
SAMPLES = [{"text": "abc" * n, "number": n} for n in range(20)]


def write(folder, samples=SAMPLES, columns=COLUMNS, **options):
    with MDSWriter(columns=columns, out=folder, **options) as sink:
        for sample in samples:
            sink.write(sample)
    return folder


def read(shards):
    return [shards.read(shard, n) for shard, length in enumerate(shards.lengths) for n in range(length)]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
