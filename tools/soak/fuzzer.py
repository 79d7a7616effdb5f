"""A fuzzer that knows how media files are built: it changes chunks, segments, boxes and fields, not only bytes.

A file is parsed into chunks, some of which contain further chunks; they are changed and put together again, with
lengths and checksums that are right unless a change is about them. So decoders do not refuse a file at its first bytes.
"""

import copy
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

MAX_BYTES = 4 << 20
"""Larger results are truncated: some changes multiply."""
_INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


@dataclass
class Chunk:
    """A piece of a file. Without a tag it is plain bytes; otherwise its layout writes tag, length and body."""

    tag: bytes
    body: "bytes | list[Chunk]"
    stated: int | None = None
    """The length that it states, if that is not the true one."""


Parse = Callable[[bytes], list[Chunk]]
Build = Callable[[Sequence[Chunk]], bytes]


@dataclass(frozen=True)
class Layout:
    """How the files of a format are divided into chunks and put together again."""

    parse: Parse
    build: Build


# ---- formats without nesting or lengths: a sequence of pieces


def _joined(chunks: Sequence[Chunk]) -> bytes:
    return b"".join(_bytes(chunk.body) for chunk in chunks)


def _bytes(body: bytes | list[Chunk]) -> bytes:
    return body if isinstance(body, bytes) else _joined(body)


def _cut(data: bytes, positions: Sequence[int]) -> list[Chunk]:
    """Return the pieces of a file between positions."""
    inside = sorted({position for position in positions if 0 < position < len(data)})
    return [Chunk(b"", data[begin:end]) for begin, end in pairwise([0, *inside, len(data)])]


def fields_first(data: bytes) -> list[Chunk]:
    """Cut a header into fields of four bytes, and what follows it into blocks."""
    return _cut(data, [*range(0, 128, 4), *range(128, len(data), 256)])


def _blocks_of(size: int) -> Parse:
    return lambda data: _cut(data, range(0, len(data), size))


def _pieces_at(signature: bytes) -> Parse:
    """Cut a file wherever a signature begins."""

    def parse(data: bytes) -> list[Chunk]:
        positions, position = list[int](), data.find(signature)
        while position >= 0:
            positions.append(position)
            position = data.find(signature, position + 1)
        return _cut(data, positions)

    return parse


def _parse_tiff(data: bytes) -> list[Chunk]:
    """Cut a TIFF into its directories' entries and what lies between them."""
    order = "little" if data[:2] == b"II" else "big"

    def number(position: int, size: int) -> int:
        return int.from_bytes(data[position : position + size], order)  # type: ignore[arg-type]

    cuts, offset = [4], number(4, 4)
    while 0 < offset < len(data) and offset not in cuts:
        first, count = offset + 2, number(offset, 2)
        cuts += [offset, *range(first, first + 12 * count + 1, 12), first + 12 * count + 4]
        offset = number(first + 12 * count, 4)
    return _cut(data, cuts)


def _parse_gif(data: bytes) -> list[Chunk]:
    """Cut a GIF into screen descriptor, colour tables, extensions, image descriptors and blocks of codes."""
    cuts = [6, position := 13]
    if data[10] & 0x80:
        position += 3 << ((data[10] & 7) + 1)
    while position < len(data) and data[position] in (0x21, 0x2C):
        cuts.append(position)
        if data[position] == 0x2C:
            flags, position = data[position + 9], position + 10
            cuts.append(position)
            position += (3 << ((flags & 7) + 1) if flags & 0x80 else 0) + 1
        else:
            position += 2
        while position < len(data) and data[position]:
            cuts.append(position)
            position += 1 + data[position]
        position += 1
    return _cut(data, [*cuts, position])


# ---- formats of chunks with lengths


def _parse_png(data: bytes) -> list[Chunk]:
    chunks, position = [Chunk(b"", data[:8])], 8
    while position + 12 <= len(data):
        size = int.from_bytes(data[position : position + 4])
        chunks.append(Chunk(data[position + 4 : position + 8], data[position + 8 : position + 8 + size]))
        position += 12 + size
    return chunks


def _build_png(chunks: Sequence[Chunk]) -> bytes:
    parts = []
    for chunk in chunks:
        body = _bytes(chunk.body)
        size = (len(body) if chunk.stated is None else chunk.stated) % 2**32
        whole = size.to_bytes(4) + chunk.tag + body + zlib.crc32(chunk.tag + body).to_bytes(4)
        parts.append(whole if chunk.tag else body)
    return b"".join(parts)


def _parse_jpeg(data: bytes) -> list[Chunk]:
    chunks, position = [Chunk(b"", data[:2])], 2
    while position + 4 <= len(data) and data[position] == 0xFF and data[position + 1] != 0xD9:  # the end
        marker, size = data[position : position + 2], int.from_bytes(data[position + 2 : position + 4])
        chunks.append(Chunk(marker, data[position + 4 : position + 2 + size]))
        position += 2 + size
        if marker == b"\xff\xda":  # its coefficients end before the next marker that is not among them
            end = position
            while end + 1 < len(data) and not (data[end] == 0xFF and data[end + 1] not in (0, *range(0xD0, 0xD8))):
                end += 1
            chunks.append(Chunk(b"", data[position:end]))
            position = end
    return [*chunks, Chunk(b"", data[position:])]


def _build_jpeg(chunks: Sequence[Chunk]) -> bytes:
    parts = []
    for chunk in chunks:
        body = _bytes(chunk.body)
        size = (len(body) + 2 if chunk.stated is None else chunk.stated) % 2**16
        parts.append(chunk.tag + size.to_bytes(2) + body if chunk.tag else body)
    return b"".join(parts)


def _parse_riff(data: bytes) -> list[Chunk]:
    """Parse the chunks of WebP and AVI."""
    chunks, position = list[Chunk](), 0
    while position + 8 <= len(data):
        tag, size = data[position : position + 4], int.from_bytes(data[position + 4 : position + 8], "little")
        body = data[position + 8 : position + 8 + size]
        nested = tag in (b"RIFF", b"LIST")
        chunks.append(Chunk(tag, [Chunk(b"", body[:4]), *_parse_riff(body[4:])] if nested else body))
        position += 8 + size + size % 2
    return chunks


def _build_riff(chunks: Sequence[Chunk]) -> bytes:
    parts = []
    for chunk in chunks:
        body = chunk.body if isinstance(chunk.body, bytes) else _build_riff(chunk.body)
        size = (len(body) if chunk.stated is None else chunk.stated) % 2**32
        padded = body + b"\0" * (len(body) % 2)
        parts.append(chunk.tag + size.to_bytes(4, "little") + padded if chunk.tag else body)
    return b"".join(parts)


_BOXES_WITHIN = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"dinf", b"udta", b"iprp", b"ipco", b"jp2h"}


def _parse_boxes(data: bytes) -> list[Chunk]:
    """Parse the boxes of MP4, MOV, AVIF and JPEG 2000."""
    chunks, position = list[Chunk](), 0
    while position + 8 <= len(data):
        size, tag, header = int.from_bytes(data[position : position + 4]), data[position + 4 : position + 8], 8
        if size == 1:
            size, header = int.from_bytes(data[position + 8 : position + 16]), 16
        body = data[position + header : position + size] if size >= header else data[position + header :]
        if tag in _BOXES_WITHIN:
            chunks.append(Chunk(tag, _parse_boxes(body)))
        elif tag == b"meta" and body[:4] == bytes(4):  # version and flags come first
            chunks.append(Chunk(tag, [Chunk(b"", body[:4]), *_parse_boxes(body[4:])]))
        else:
            chunks.append(Chunk(tag, body))
        position += size if size >= header else len(data)
    return chunks


def _build_boxes(chunks: Sequence[Chunk]) -> bytes:
    parts = []
    for chunk in chunks:
        body = chunk.body if isinstance(chunk.body, bytes) else _build_boxes(chunk.body)
        size = (len(body) + 8 if chunk.stated is None else chunk.stated) % 2**32
        parts.append(size.to_bytes(4) + chunk.tag + body if chunk.tag else body)
    return b"".join(parts)


_NESTED = "1a45dfa3 18538067 1f43b675 1654ae6b ae e0 a0 1549a966 1c53bb6b bb 114d9b74 4dbb 1254c367 7373"
_ELEMENTS_WITHIN = {bytes.fromhex(text) for text in _NESTED.split()}


def _parse_ebml(data: bytes) -> list[Chunk]:
    """Parse the elements of Matroska and WebM."""
    chunks, position = list[Chunk](), 0
    while position < len(data):
        tag_length = _number_length(data[position])
        size_at = position + tag_length
        if not tag_length or size_at >= len(data) or not (size_length := _number_length(data[size_at])):
            break
        tag = data[position:size_at]
        begin = size_at + size_length
        size = int.from_bytes(data[size_at:begin]) & ((1 << 7 * size_length) - 1)
        unknown = size == (1 << 7 * size_length) - 1
        body = data[begin:] if unknown else data[begin : begin + size]
        chunks.append(Chunk(tag, _parse_ebml(body) if tag in _ELEMENTS_WITHIN else body))
        position = begin + len(body)
    return [*chunks, Chunk(b"", data[position:])] if position < len(data) else chunks


def _number_length(first: int) -> int:
    """Return how many bytes a number of EBML has, by its first one; 0 if it is none."""
    return 9 - first.bit_length() if first else 0


def _build_ebml(chunks: Sequence[Chunk]) -> bytes:
    parts = []
    for chunk in chunks:
        body = chunk.body if isinstance(chunk.body, bytes) else _build_ebml(chunk.body)
        size = (len(body) if chunk.stated is None else chunk.stated) % 2**56
        parts.append(chunk.tag + b"\x01" + size.to_bytes(7) + body if chunk.tag else body)
    return b"".join(parts)


PNG, JPEG = Layout(_parse_png, _build_png), Layout(_parse_jpeg, _build_jpeg)
RIFF, BOXES = Layout(_parse_riff, _build_riff), Layout(_parse_boxes, _build_boxes)
EBML = Layout(_parse_ebml, _build_ebml)
GIF, TIFF, FIELDS = Layout(_parse_gif, _joined), Layout(_parse_tiff, _joined), Layout(fields_first, _joined)
START_CODES = Layout(_pieces_at(b"\0\0\1"), _joined)
"""MPEG streams and those of H.264 and H.265."""
TRANSPORT, OGG = Layout(_blocks_of(188), _joined), Layout(_pieces_at(b"OggS"), _joined)
KLV, JPEGS = Layout(_pieces_at(b"\x06\x0e\x2b\x34"), _joined), Layout(_pieces_at(b"\xff\xd8"), _joined)
CODESTREAM = Layout(_pieces_at(b"\xff"), _joined)
LINES = Layout(_pieces_at(b"\n"), _joined)


# ---- changes


def _levels(chunks: list[Chunk]) -> Iterator[list[Chunk]]:
    """Yield the list itself and those of the chunks below it."""
    yield chunks
    for chunk in chunks:
        if isinstance(chunk.body, list):
            yield from _levels(chunk.body)


def _all_chunks(chunks: list[Chunk]) -> list[Chunk]:
    return [chunk for level in _levels(chunks) for chunk in level]


def _edit(chunks: list[Chunk], rng: Random, change: Callable[[bytearray], object]) -> None:
    """Change the bytes of some chunk that has some."""
    editable = [chunk for chunk in _all_chunks(chunks) if isinstance(chunk.body, bytes) and chunk.body]
    if editable:
        chunk = rng.choice(editable)
        body = bytearray(_bytes(chunk.body))
        change(body)
        chunk.body = bytes(body)


def drop(chunks: list[Chunk], rng: Random, donor: list[Chunk]) -> None:
    """Leave a chunk out."""
    level = rng.choice([level for level in _levels(chunks) if level] or [chunks])
    if level:
        level.pop(rng.randrange(len(level)))


def repeat(chunks: list[Chunk], rng: Random, donor: list[Chunk]) -> None:
    """Repeat a chunk, a few times or very often."""
    level = rng.choice([level for level in _levels(chunks) if level] or [chunks])
    if level:
        position = rng.randrange(len(level))
        level[position:position] = [level[position]] * rng.choice((1, 1, 2, 5, 400))


def swap(chunks: list[Chunk], rng: Random, donor: list[Chunk]) -> None:
    """Exchange two chunks of one level."""
    level = rng.choice([level for level in _levels(chunks) if len(level) > 1] or [chunks])
    if len(level) > 1:
        one, other = rng.sample(range(len(level)), 2)
        level[one], level[other] = level[other], level[one]


def retag(chunks: list[Chunk], rng: Random, donor: list[Chunk]) -> None:
    """Give a chunk the tag of another one."""
    tagged = [chunk for chunk in _all_chunks(chunks) if chunk.tag]
    if tagged:
        rng.choice(tagged).tag = rng.choice(tagged).tag


def misstate(chunks: list[Chunk], rng: Random, donor: list[Chunk]) -> None:
    """Let a chunk state a wrong length."""
    tagged = [chunk for chunk in _all_chunks(chunks) if chunk.tag]
    if tagged:
        chunk = rng.choice(tagged)
        length = len(_bytes(chunk.body))
        chunk.stated = rng.choice((*_INTERESTING, length - 1, length + 1, length + 9, 2 * length, rng.getrandbits(31)))


def cut(chunks: list[Chunk], rng: Random, donor: list[Chunk]) -> None:
    """Shorten the body of a chunk."""

    def change(body: bytearray) -> None:
        del body[rng.randrange(len(body)) :]

    _edit(chunks, rng, change)


def extend(chunks: list[Chunk], rng: Random, donor: list[Chunk]) -> None:
    """Lengthen the body of a chunk."""
    _edit(chunks, rng, lambda body: body.extend(rng.randbytes(rng.choice((1, 2, 7, 64, 5000)))))


def flip(chunks: list[Chunk], rng: Random, donor: list[Chunk]) -> None:
    """Flip some bits of a chunk."""

    def change(body: bytearray) -> None:
        for _ in range(rng.choice((1, 1, 2, 8, 32))):
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)

    _edit(chunks, rng, change)


def set_number(chunks: list[Chunk], rng: Random, donor: list[Chunk]) -> None:
    """Set a number in a chunk to an extreme value; most fields lie in the first bytes."""

    def change(body: bytearray) -> None:
        width = rng.choice([width for width in (1, 2, 4, 8) if width <= len(body)])
        limit = len(body) - width
        position = rng.randint(0, min(limit, rng.choice((8, 32, limit))))
        value = rng.choice((*_INTERESTING, rng.getrandbits(8 * width)))
        body[position : position + width] = (value % (1 << 8 * width)).to_bytes(width, rng.choice(("big", "little")))

    _edit(chunks, rng, change)


def fill(chunks: list[Chunk], rng: Random, donor: list[Chunk]) -> None:
    """Overwrite a part of a chunk with one value."""

    def change(body: bytearray) -> None:
        begin = rng.randrange(len(body))
        end = rng.randint(begin + 1, len(body))
        body[begin:end] = bytes([rng.choice((0, 0xFF, rng.randrange(256)))]) * (end - begin)

    _edit(chunks, rng, change)


def transplant(chunks: list[Chunk], rng: Random, donor: list[Chunk]) -> None:
    """Insert a chunk of another file of the format."""
    candidates = _all_chunks(donor)
    if candidates:
        level = rng.choice(list(_levels(chunks)))
        level.insert(rng.randint(0, len(level)), copy.deepcopy(rng.choice(candidates)))


def nest(chunks: list[Chunk], rng: Random, donor: list[Chunk]) -> None:
    """Put a chunk that contains others into itself, again and again."""
    outer = [chunk for chunk in _all_chunks(chunks) if isinstance(chunk.body, list)]
    if outer:
        chunk = rng.choice(outer)
        for _ in range(rng.choice((1, 3, 30))):
            chunk.body = [Chunk(chunk.tag, chunk.body)]


CHANGES = (drop, repeat, swap, retag, misstate, cut, extend, flip, set_number, set_number, fill, transplant, nest)


def mutate(data: bytes, layout: Layout, rng: Random, donor: bytes) -> bytes:
    """Return a changed file, never the same; it depends on the arguments alone."""
    while True:
        chunks, others = layout.parse(data), layout.parse(donor)
        for _ in range(rng.choice((1, 1, 2, 3, 5))):
            rng.choice(CHANGES)(chunks, rng, others)
        changed = layout.build(chunks)[:MAX_BYTES]
        if rng.random() < 0.15 and changed:
            changed = _change_bytes(changed, rng)
        if changed != data:
            return changed


def _change_bytes(data: bytes, rng: Random) -> bytes:
    """Truncate a file, append to it, or flip bits anywhere, checksums included."""
    kind = rng.randrange(3)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    if kind == 1:
        return data + rng.choice((rng.randbytes(100), data, b"\0" * 1000))
    changed = bytearray(data)
    for _ in range(rng.choice((1, 4, 16))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)
