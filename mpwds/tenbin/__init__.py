"""Arrays to bytes and back, in the tenbin format of webdataset and tensorcom.

An array is two chunks, one header and one data. A chunk is ``~TenBin~``, the payload's length as an
int64, and the payload, padded with zeros to a multiple of 64 bytes. A header's payload is the dtype's
code (8 ASCII bytes), the array's name (8 ASCII bytes), the number of dimensions and each dimension
(int64). Everything is little-endian. Chunks follow each other without gaps.

The codes ``f2 f4 f8 i1 i2 i4 i8 u1 u2 u8`` are understood by webdataset and tensorcom; ``u4`` (which
they misspell), ``b1`` (bool), ``bf2`` (bfloat16), ``c8`` and ``c16`` (complex) by mpwds only.

A decoder compares every length with the bytes that it has. Whatever the input, it yields arrays or raises
``TenbinError``, and allocates no more than the input holds.
"""

from __future__ import annotations

from mpwds.tenbin.array import (
    Array,
    ArrayHeader,
    Buffer,
    Deferred,
    Output,
    array_nbytes,
    data_offset,
    holds,
    parse_array,
    view_array,
    write_array,
)
from mpwds.tenbin.lists import (
    Infos,
    check_acceptable_input_type,
    decode_buffer,
    decode_header,
    decode_list,
    encode_buffer,
    encode_header,
    encode_into,
    encode_list,
    encoded_nbytes,
    load,
    read,
    save,
    sctp_recv,
    sctp_send,
    str64,
    unstr64,
    write,
    zrecv_multipart,
    zrecv_single,
    zsend_multipart,
    zsend_single,
)

__all__ = [
    "Array",
    "ArrayHeader",
    "Buffer",
    "Deferred",
    "Infos",
    "Output",
    "array_nbytes",
    "check_acceptable_input_type",
    "data_offset",
    "decode_buffer",
    "decode_header",
    "decode_list",
    "encode_buffer",
    "encode_header",
    "encode_into",
    "encode_list",
    "encoded_nbytes",
    "holds",
    "load",
    "parse_array",
    "read",
    "save",
    "sctp_recv",
    "sctp_send",
    "str64",
    "unstr64",
    "view_array",
    "write",
    "write_array",
    "zrecv_multipart",
    "zrecv_single",
    "zsend_multipart",
    "zsend_single",
]
