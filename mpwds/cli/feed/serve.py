"""``mpwds serve``: runs workers for trainers on other machines."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Argument, BadParameter, Context, Option

from mpwds.cli.feed.commands import Keys
from mpwds.cli.shards import load_dataset
from mpwds.errors import SecurityError
from mpwds.viewing.wording import counted

_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm")
_SHUFFLED_PATHS = 100_000
_SHUFFLED_SAMPLES = 2000
# Mean and standard deviation of ImageNet's channels, by which every standard recipe normalises.
_NORMALISED: dict[str, Any] = {
    "dtype": "float32",
    "layout": "CHW",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}


class HttpAddress(NamedTuple):
    host: str
    port: int


def parse_address(text: str) -> HttpAddress:
    """The address that ``9400``, ``0.0.0.0:9400`` or ``[::]:9400`` stands for.

    Example:
        >>> parse_address("9400"), parse_address("[::]:9400")
        (HttpAddress(host='127.0.0.1', port=9400), HttpAddress(host='::', port=9400))
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise BadParameter(f"{text!r} is no [HOST:]PORT: a port is a number up to 65535")
    return HttpAddress(host.strip("[]") or "127.0.0.1", int(port))


@dataclass(frozen=True)
class Serving:
    """Options that are arguments of ``Server``, of the same names."""

    bind: Annotated[
        str,
        Option(metavar="URL", help="Where to serve: tcp://HOST:PORT (HOST 0.0.0.0 is all) or ipc://PATH."),
    ] = "tcp://127.0.0.1:7880"
    workers: Annotated[int, Option(min=1, help="Worker processes.")] = 4
    keys: Keys = None
    insecure: Annotated[
        bool, Option("--insecure", help="Serve other machines without keys: everybody can read.")
    ] = False
    prefetch: Annotated[int, Option(min=1, help="Batches that each worker makes ahead.")] = 2
    start_method: Annotated[str, Option(help="forkserver, spawn or fork.")] = "forkserver"
    max_clients: Annotated[int | None, Option(min=1, help="Most trainers, or groups, at once.")] = None
    workers_per_client: Annotated[
        int | None, Option(min=1, help="Workers of a trainer that asks for no number.")
    ] = None
    client_timeout: Annotated[
        float, Option(min=2, metavar="SECONDS", help="Silence after which a trainer is gone.")
    ] = 10.0


def serve(
    context: Context,
    to: Serving,
    source: Annotated[
        str | None, Argument(metavar="FILE.py:NAME", help="The dataset: its file or module, and its name.")
    ] = None,
    no_shared_memory: Annotated[
        bool, Option("--no-shared-memory", help="Send bytes to trainers on this machine, too.")
    ] = False,
    metrics: Annotated[
        HttpAddress | None,
        Option(
            metavar="[HOST:]PORT",
            parser=parse_address,
            help="Hand figures to Prometheus on this port of 127.0.0.1, or of another HOST with a token.",
        ),
    ] = None,
    metrics_token: Annotated[
        Path | None, Option(metavar="FILE", help="Holds the token that Prometheus sends.")
    ] = None,
    images: Annotated[
        Path | None, Option(metavar="DIR", help="Serve images: DIR/CLASS/NAME.jpg, augmented.")
    ] = None,
    shards: Annotated[
        list[str] | None, Option(metavar="URL", help="Serve images (jpg, png) and cls of tar shards.")
    ] = None,
    batch_size: Annotated[int, Option(min=1, help="For --images and --shards.")] = 64,
    size: Annotated[int, Option(min=1, help="Width and height of these images.")] = 224,
    tensorcom: Annotated[
        list[str] | None,
        Option(metavar="URL", help="Send plain tensorcom (zpush://HOST:PORT) in place of serving."),
    ] = None,
    epochs: Annotated[
        int | None, Option(min=1, help="Epochs that --tensorcom sends; by default it does not end.")
    ] = None,
) -> None:
    """Serve a dataset to trainers: workers decode and augment here, RemoteLoader receives there.

    The dataset is any that MultiLoader takes: `mpwds serve pipeline.py:dataset --workers 16`. --images and
    --shards need no code: random crops and mirror images in float32, normalised, with their labels.

    SIGTERM and Ctrl-C end the server; trainers then wait for it, or move to other servers.
    """
    if tensorcom:
        from mpwds.cli.feed.sources import check_tensorcom

        own = ("bind", "keys", "max_clients", "workers_per_client", "client_timeout", "no_shared_memory")
        _refuse(
            context,
            (*own, "metrics", "metrics_token"),
            "means nothing to --tensorcom: its consumers have none of that",
        )
        check_tensorcom(tensorcom, to.insecure)
    else:
        _refuse(context, ("epochs",), "belongs to --tensorcom: trainers say how many epochs they want")
    if source is not None:
        _refuse(context, ("batch_size", "size"), "belongs to --images and --shards")
    token = _token(metrics, metrics_token)
    dataset = _dataset(source, images, shards, size, batch_size)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("mpwds.feed").setLevel(logging.INFO)  # who comes and goes
    if tensorcom:
        return _send_tensorcom(dataset, tensorcom, to.workers, to.start_method, epochs)
    from mpwds.feed.server.server import Server
    from mpwds.loader.resume.description import described

    with contextlib.ExitStack() as ends:
        server = ends.enter_context(Server(dataset, shared_memory=not no_shared_memory, **vars(to)))
        for number in (signal.SIGTERM, signal.SIGINT):
            ends.callback(signal.signal, number, signal.signal(number, lambda *_: server.stop()))
        if metrics is not None:
            from mpwds.feed.metrics import serve_server_metrics

            serving = serve_server_metrics(server.status, metrics.port, metrics.host, token)
            port = ends.enter_context(serving).port
            print(f"metrics at http://{metrics.host}:{port}/metrics", flush=True)
        shown = " → ".join(described(server.dataset))
        print(f"serving {shown} at {server.url} with {counted(to.workers, 'worker')}", flush=True)
        server.serve()
        print("ended", flush=True)
    return None


def _token(metrics: HttpAddress | None, path: Path | None) -> str | None:
    """The token of metrics, without which others in a network could read them."""
    from mpwds.feed.keys import is_loopback

    if path is not None:
        if metrics is None:
            raise ValueError("--metrics-token belongs to --metrics HOST:PORT")
        token = path.read_text().strip()
        if not token:
            raise ValueError(f"{path} is empty: write a token to it, such as one of `openssl rand -hex 32`")
        return token
    if metrics is not None and not is_loopback(metrics.host):
        raise SecurityError(
            f"--metrics {metrics.host}:{metrics.port} can be reached from other machines: "
            "give --metrics-token FILE"
        )
    return None


def _refuse(context: Context, names: tuple[str, ...], why: str) -> None:
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise BadParameter(f"--{name.replace('_', '-')} {why}")


def _dataset(
    source: str | None, images: Path | None, shards: list[str] | None, size: int, batch_size: int
) -> Any:
    if sum(given is not None for given in (source, images, shards or None)) != 1:
        raise BadParameter("say what to serve: either FILE.py:NAME, --images DIR or --shards URL")
    if source is not None:
        return load_dataset(source)
    if images is not None:
        return _of_folder(images, size, batch_size)
    return _of_shards(shards or [], size, batch_size)


def _of_folder(folder: Path, size: int, batch_size: int) -> Any:
    """The images in a folder with a folder for each class: ``(images, labels)`` in batches.

    Labels are the classes' places in the order of their names.
    """
    import mpwds

    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    images = [
        (str(path), label)
        for label, members in enumerate(classes)
        for path in sorted(members.rglob("*"))
        if path.suffix.lower().lstrip(".") in _IMAGES
    ]
    if not images:
        raise FileNotFoundError(
            f"{folder} has no images in folders of classes: expected CLASS/NAME.jpg and the like "
            f"({', '.join(_IMAGES)})"
        )
    load = functools.partial(_load, crop=mpwds.RandomResizedCrop(size, **_NORMALISED))
    dataset: Any = mpwds.DataPipeline(images).shuffle(_SHUFFLED_PATHS).map(load).batched(batch_size)
    dataset.classes = [path.name for path in classes]
    return dataset


def _load(labelled: tuple[str, int], crop: Callable[[bytes], Any]) -> tuple[Any, int]:
    path, label = labelled
    return crop(Path(path).read_bytes()), label


def _of_shards(urls: list[str], size: int, batch_size: int) -> Any:
    """The images and classes (``cls``) in tar shards: ``(images, labels)`` in batches."""
    import mpwds
    from mpwds.storage.streams.patterns import Names

    image = ";".join(_IMAGES)
    samples = mpwds.WebDataset(Names(*urls), shardshuffle=True).shuffle(_SHUFFLED_SAMPLES)
    cropped = samples.map_dict(cls=int).random_resized_crop(image, size, **_NORMALISED)
    return cropped.to_tuple(image, "cls").batched(batch_size)


def _send_tensorcom(
    dataset: Any, urls: list[str], workers: int, start_method: str, epochs: int | None
) -> None:
    from mpwds.compat.tensorcom.feeding import send_batches
    from mpwds.loader.multi_loader import MultiLoader
    from mpwds.loader.resume.description import described

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with MultiLoader(dataset, workers=workers, start_method=start_method, output="numpy") as loader:

        def batches() -> Iterator[Any]:
            for _ in range(epochs) if epochs is not None else itertools.count():
                yield from loader

        print(f"sending {' → '.join(described(loader.dataset))} to {' '.join(urls)}", flush=True)
        sent = send_batches(urls, batches())
        print(f"sent {sent} batches", flush=True)
