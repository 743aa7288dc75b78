"""The stages that work on the fields of samples, as methods of datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import mpwds  # which imports a stage when it is asked for it: workers start sooner without the others
from mpwds.mistakes import explained
from mpwds.pipeline.composable import Composable, Self
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.stages.xdecode import StreamDecoder, default_decoders

if TYPE_CHECKING:
    from mpwds.pipeline.decoding.decoders import HandlerSpec
    from mpwds.pipeline.stages.associate import Associator


@explained
class FluentFields(Composable):
    """What has stages that work on fields: part of ``Fluent``."""

    def decode(
        self: Self,
        *handlers: HandlerSpec,
        pre: Iterable[Callable[..., Any]] | None = None,
        post: Iterable[Callable[..., Any]] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
        handler: Handler = reraise_exception,
        allow_pickle: bool = False,
    ) -> Self:
        """Decodes the fields of dict samples by their extensions.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([{"__key__": "a", "cls": b"7"}]).decode())
            [{'__key__': 'a', 'cls': 7}]
        """
        return self.compose(
            mpwds.decode(
                *handlers,
                pre=pre,
                post=post,
                only=only,
                partial=partial,
                handler=handler,
                allow_pickle=allow_pickle,
            )
        )

    def xdecode(
        self: Self,
        *decoders: tuple[str, StreamDecoder],
        must_decode: bool = True,
        defaults: Iterable[tuple[str, StreamDecoder]] = default_decoders,
        allow_pickle: bool = False,
        handler: Handler = reraise_exception,
        **more: StreamDecoder,
    ) -> Self:
        """Decodes the fields of dict samples by patterns of their names, from streams.

        Example:
            >>> import json
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([{"txt": b"abc", "meta.json": b"[1]"}]).xdecode(json=json.load))
            [{'txt': 'abc', 'meta.json': [1]}]
        """
        return self.compose(
            mpwds.xdecode(
                *decoders,
                must_decode=must_decode,
                defaults=defaults,
                allow_pickle=allow_pickle,
                handler=handler,
                **more,
            )
        )

    def map_dict(self: Self, handler: Handler = reraise_exception, **functions: Callable[[Any], Any]) -> Self:
        """Replaces fields of dict samples by functions of them.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([{"cls": "7"}]).map_dict(cls=int))
            [{'cls': 7}]
        """
        return self.compose(mpwds.map_dict(handler, **functions))

    def map_tuple(
        self: Self, *functions: Callable[[Any], Any] | None, handler: Handler = reraise_exception
    ) -> Self:
        """Applies a function to each field of tuple samples.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([("a", "7")]).map_tuple(None, int))
            [('a', 7)]
        """
        return self.compose(mpwds.map_tuple(*functions, handler=handler))

    def to_tuple(
        self: Self,
        *specs: str | Iterable[str],
        handler: Handler = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> Self:
        """Turns dict samples into tuples of some of their fields.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([{"jpg": b"..", "cls": 7}]).to_tuple("png;jpg", "cls"))
            [(b'..', 7)]
        """
        stage = mpwds.to_tuple(
            *specs, handler=handler, missing_is_error=missing_is_error, none_is_error=none_is_error
        )
        return self.compose(stage)

    def extract_keys(
        self: Self,
        *patterns: str | Iterable[str],
        duplicate_is_error: bool = True,
        ignore_missing: bool = False,
        handler: Handler = reraise_exception,
    ) -> Self:
        """Turns dict samples into tuples of the fields that match patterns.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([{"left.jpg": b"..", "cls": 7}]).extract_keys("*.png;*.jpg", "cls"))
            [(b'..', 7)]
        """
        stage = mpwds.extract_keys(
            *patterns, duplicate_is_error=duplicate_is_error, ignore_missing=ignore_missing, handler=handler
        )
        return self.compose(stage)

    def rename(
        self: Self, handler: Handler = reraise_exception, keep: bool = True, **fields: str | Iterable[str]
    ) -> Self:
        """Renames fields of dict samples.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([{"jpg": b"..", "cls": 7}]).rename(image="png;jpg"))
            [{'cls': 7, 'image': b'..'}]
        """
        return self.compose(mpwds.rename(handler, keep, **fields))

    def rename_keys(
        self: Self,
        *renamings: Sequence[str],
        keep_unselected: bool = False,
        must_match: bool = True,
        duplicate_is_error: bool = True,
        handler: Handler = reraise_exception,
        **more: str,
    ) -> Self:
        """Renames the fields of dict samples that match patterns.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([{"left.png": b"..", "cls": 7}]).rename_keys(image="*.png"))
            [{'image': b'..'}]
        """
        return self.compose(
            mpwds.rename_keys(
                *renamings,
                keep_unselected=keep_unselected,
                must_match=must_match,
                duplicate_is_error=duplicate_is_error,
                handler=handler,
                **more,
            )
        )

    def associate(self: Self, associator: Associator, handler: Handler = reraise_exception) -> Self:
        """Adds fields to dict samples, found by their keys.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([{"__key__": "a"}]).associate({"a": {"caption": "a cat"}}))
            [{'__key__': 'a', 'caption': 'a cat'}]
        """
        return self.compose(mpwds.associate(associator, handler))
