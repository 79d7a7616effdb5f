"""Files that someone might send: code in pickles, YAML and addresses, bombs, links and paths in tars."""

import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from unshuffle.config import check as check_config
from unshuffle.config import read_config
from unshuffle.data.held_out import load_held_out
from unshuffle.data.shard_files import find_shards
from unshuffle.data.shards import ShardOptions, open_shards
from unshuffle.data.store import Kind, Store
from unshuffle.models.weights import load_backbone, read_weights
from unshuffle.permutations import load_permutations
from unshuffle.runs.checkpoints import load_checkpoint
from unshuffle.runs.history import read_states
from unshuffle.runs.run import Run

KINDS: tuple[Kind, ...] = ("images", "videos")


@dataclass(frozen=True)
class Case:
    """A hostile file, and how the program reads it."""

    name: str
    read: Callable[[], Any]


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, canary: Path, function: Any) -> None:
        self.canary, self.function = canary, function

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        if self.function is eval:
            return eval, (f"open({str(self.canary)!r}, 'w')",)
        if self.function is os.system:
            return os.system, (f"touch '{self.canary}'",)
        return self.function, (str(self.canary), "w")


def cases(folder: Path, canary: Path) -> list[Case]:
    """Write all hostile files and return how each is read."""
    folder.mkdir(parents=True)
    return [
        *_pickles(folder, canary),
        *_arrays(folder, canary),
        *_configs(folder, canary),
        *_tars(folder, canary),
        *_headers(folder),
        *_metrics(folder),
    ]


def _pickles(folder: Path, canary: Path) -> list[Case]:
    found = []
    for number, function in enumerate((os.system, eval, open, os.open)):
        payload = Touch(canary, function)
        shapes: dict[str, Any] = {
            "alone": payload,
            "value": {"network": payload},
            "key order": {"iteration": 1, "network": {"weight": torch.zeros(2)}, "random": [payload]},
        }
        for shape, content in shapes.items():
            file = folder / f"pickle-{number}-{shape}.pt"
            torch.save(content, file)
            found.append(Case(f"checkpoint with code ({shape})", partial(load_checkpoint, file)))
            found.append(Case(f"weights with code ({shape})", partial(load_backbone, file)))
            old = folder / f"old-{number}-{shape}.pth"
            torch.save(content, old, _use_new_zipfile_serialization=False)
            found.append(Case(f"old weights with code ({shape})", partial(read_weights, old)))
            bare = folder / f"bare-{number}-{shape}.bin"
            bare.write_bytes(pickle.dumps(content))
            found.append(Case(f"bare pickle ({shape})", partial(read_weights, bare)))
    huge = folder / "huge.pt"
    torch.save({"network": torch.zeros(4)}, huge)
    renamed = folder / "renamed.pt"
    with zipfile.ZipFile(huge) as source, zipfile.ZipFile(renamed, "w") as target:
        for member in source.namelist():
            content = source.read(member)
            # the same pickle with a shape of 2**31 - 1 in place of 4, and right checksums
            target.writestr(member, content.replace(b"K\x04\x85", b"J\xff\xff\xff\x7f\x85"))
    bomb = folder / "bomb.pt"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("archive/data.pkl", b"\0" * 300_000_000)
    deep = folder / "deep.pth"
    deep.write_bytes(b"\x80\x02" + b"]" * 200_000 + b".")
    found += [
        Case("checkpoint with a huge shape", lambda: load_checkpoint(renamed)),
        Case("weights with a huge shape", lambda: load_backbone(renamed)),
        Case("checkpoint that expands", lambda: load_checkpoint(bomb)),
        Case("nested pickle", lambda: read_weights(deep)),
    ]
    return found


def _arrays(folder: Path, canary: Path) -> list[Case]:
    objects = np.array([Touch(canary, os.system)], dtype=object)
    array, archive = folder / "objects.npy", folder / "objects.npz"
    np.save(array, objects, allow_pickle=True)
    np.savez(archive, spatial_names=objects, spatial_jpeg=objects, spatial_ends=objects, iteration=objects)
    vast = folder / "vast.npy"
    header = "{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776, 9), }"
    vast.write_bytes(_npy(header))
    open_header, wrong_type = _npy("{'descr': ("), _npy("{'descr': '<i8', 'fortran_order': 3, 'shape': 'x'}")
    found = [
        Case("permutations with code", partial(load_permutations, array)),
        Case("held-out samples with code", partial(load_held_out, archive)),
        Case("permutations of 70 TB", partial(load_permutations, vast)),
    ]
    for number, content in enumerate((open_header, wrong_type, b"", b"no array")):
        single = folder / f"header-{number}.npy"
        single.write_bytes(content)
        run = Run(folder / f"arrays-{number}")
        run.states.mkdir(parents=True)
        line = {"iteration": 1, "kind": "validation", "task": "spatial", "error": 1.0, "chance": 1.0}
        run.metrics_file.write_text(json.dumps(line))
        for file in (run.held_out, run.states / "spatial-00000001.npz"):
            with zipfile.ZipFile(file, "w") as target:  # with right checksums
                for name in ("iteration", "permutation_errors", "spatial_names", "spatial_jpeg", "spatial_ends"):
                    target.writestr(f"{name}.npy", content)
        found += [
            Case(f"permutations with header {number}", partial(load_permutations, single)),
            Case(f"held-out samples with header {number}", partial(load_held_out, run.held_out)),
            Case(f"states with header {number}", partial(_read_states, run)),
        ]
    return found


def _npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header.encode() + b"\n"


def _read_states(run: Run) -> Any:
    return list(read_states(run, "spatial", ("permutation_errors",)))


def _configs(folder: Path, canary: Path) -> list[Case]:
    reference = folder / "reference.json"
    code = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    reference.write_text(json.dumps({"version": 1, "templates": {"u": code}, "gen": [], "refs": {"a.tar": "{{u}}"}}))
    texts = {
        "python tag": f"images: !!python/object/apply:os.system ['touch {canary}']",
        "python name": "images: !!python/name:os.system",
        "python module": "images: !!python/module:os",
        "python object": "images: !!python/object:unshuffle.config.Config {}",
        "python new": f"images: !!python/object/new:os.system ['touch {canary}']",
        "aliases": "a: &a [x, x]\n" + "\n".join(f"{n}: &{n} [*a, *a]" for n in "bcdefg"),
        "merge": "x: &x {preset: demo}\n<<: *x",
        "brackets": "images: " + "[" * 5000,
        "number": f"seed: {'9' * 5000}",
        "octal": "seed: 0o777777777777777777777777",
        "date": "seed: 2026-99-99",
        "binary": "images: !!binary AAAA",
        "set": "images: !!set {a, b}",
        "list": "- a\n- b",
        "nul": "images: 'a\\0b'",
        "surrogate": "images: '\\ud800'",
        "preset": "preset: [demo]",
        "infinity": "optim: {batch_size: .inf}",
        "not a number": "optim: {decay: .nan}",
        "tasks": "tasks: 'S+S'",
        "wide": "\n".join(f"k{number}: 1" for number in range(50_000)),
        "empty": "",
        "utf-16": "images: é",
    }
    addresses = {
        "reference": f"reference://::file://{reference}",
        "reference file": f"reference://?fo=file://{reference}",
        "chained": f"simplecache::file://{folder}/x.tar",
        "filecache": "filecache://x.tar",
        "shell": "github://a:b@/x.tar",
        "sftp": "sftp://127.0.0.1/x.tar",
        "zip": f"zip://*.tar::{folder}/x.zip",
        "braces": "images-{0..99999999}.tar",
        "many braces": "{0..99}{0..99}{0..99}{0..99}.tar",
        "hidden": "{reference,file}://x.tar",
        "dask": "dask://x.tar",
        "memory": "memory://x.tar",
        "long": "x" * 10_000 + ".tar",
        "traversal": "../" * 50 + "nowhere.tar",
    }
    found = []
    for name, text in texts.items():
        file = folder / f"{name}.yaml"
        file.write_bytes(text.encode("utf-16" if name == "utf-16" else "utf-8", errors="surrogatepass"))
        found.append(Case(f"config ({name})", partial(_read_config, file)))
    for name, address in addresses.items():
        found.append(Case(f"address ({name})", partial(find_shards, address)))
    return found


def write_shard(path: Path, images: Path, kind: Kind) -> Path:
    """Write a tar of images, or of the frames of clips."""
    with tarfile.open(path, "w") as tar:
        for number, file in enumerate(sorted(images.glob("[0-9]*.png"))[:24]):
            name = f"{number:04}.png" if kind == "images" else f"clip{number // 6}.{number % 6:03}.png"
            tar.add(file, name)
    return path


def _tars(folder: Path, canary: Path) -> list[Case]:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 40), (9, 99, 199)).save(buffer, "PNG")
    picture = buffer.getvalue()

    def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int | None = None) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, (len(picture) if size is None else size)
        return info

    outside = os.path.relpath(canary, folder)
    members: dict[str, list[tarfile.TarInfo]] = {
        "path above": [member(f"../../{canary.name}.png"), member(outside)],
        "absolute path": [member(f"{canary}.png"), member(str(canary))],
        "symbolic link": [member("a.png", tarfile.SYMTYPE, "/etc/passwd", 0), member("b.png")],
        "link to a folder": [member("a", tarfile.SYMTYPE, str(folder), 0), member("a/x.png")],
        "hard link": [member("a.png", tarfile.LNKTYPE, "/etc/passwd", 0), member("b.png")],
        "device": [member("a.png", tarfile.CHRTYPE, "", 0), member("b.png")],
        "named pipe": [member("a.png", tarfile.FIFOTYPE, "", 0), member("b.png")],
        "escapes": [member("\x1b]0;x\x07\x1b[2J.png"), member("=cmd()|'x'!A1.png")],
        "markup": [member("<script>alert(1)</script>.png")],
        "same name": [member("a.png"), member("a.png"), member("A.png")],
        "folder": [member("a.png", tarfile.DIRTYPE, "", 0), member("b.png")],
        "hidden": [member(".a.png"), member("b/.c/d.png")],
        "long name": [member("x" * 5000 + ".png")],
        "not text": [member("\udcff\udcfe.png")],
        "empty name": [member(""), member("b.png")],
    }
    found = []
    for name, infos in members.items():
        file = folder / f"{name.replace(' ', '-')}.tar"
        with tarfile.open(file, "w", errors="surrogateescape") as tar:
            for info in infos:
                tar.addfile(info, io.BytesIO(picture) if info.size else None)
        found.append(_tar_case(name, file, folder))
    whole = (folder / "same-name.tar").read_bytes()
    contents = {
        "compressed": b"\x1f\x8b\x08\x00" + whole,
        "huge size": whole[:124] + b"77777777777\0" + whole[136:],
        "base 256 size": whole[:124] + b"\x80" + b"\xff" * 11 + whole[136:],
        "negative size": whole[:124] + b"\xff" * 12 + whole[136:],
        "sparse": whole[:156] + b"S" + whole[157:],
        "pax": whole[:156] + b"x" + whole[157:],
        "long link": whole[:156] + b"L" + whole[157:],
        "zeros": bytes(10240),
        "text": b"no tar at all" * 100,
        "empty": b"",
    }
    for name, content in contents.items():
        file = folder / f"raw-{name.replace(' ', '-')}.tar"
        file.write_bytes(_with_checksum(content))
        found.append(_tar_case(name, file, folder))
    return found


def _with_checksum(content: bytes) -> bytes:
    """Return a tar whose first header has the right checksum."""
    if len(content) < 512 or content[257:262] != b"ustar":
        return content
    header = bytearray(content[:512])
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + content[512:]


def _tar_case(name: str, file: Path, folder: Path) -> Case:
    def read() -> None:
        for kind in KINDS:
            source = open_shards(str(file), ShardOptions(kind, 32), folder / "tar-cache", progress=False)
            for item in range(len(source)):
                source.read(item, [0])

    return Case(f"tar ({name})", read)


def _headers(folder: Path) -> list[Case]:
    """Return headers of weights and stores that lie about what follows."""
    entry = {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}
    contents = {
        "length": (2**63).to_bytes(8, "little"),
        "long": (100_000_000).to_bytes(8, "little") + b"{",
        "shape": _safetensors({"a": entry}, b"\0" * 16),
        "overlap": _safetensors({name: {**entry, "shape": [2], "data_offsets": [0, 8]} for name in "ab"}, b"\0" * 8),
        "negative": _safetensors({"a": {**entry, "shape": [-1]}}, b"\0" * 8),
        "nested": (400_008).to_bytes(8, "little") + b'{"a":' + b"[" * 400_003,
        "metadata": _safetensors({"__metadata__": {"architecture": "../../x", "crc32": "0"}}, b""),
        "module": _safetensors({"__metadata__": {"architecture": "timm:os.system"}}, b""),
        "normalisation": _safetensors({"__metadata__": {"architecture": "tiny", "normalisation": "[1,2"}}, b""),
    }
    found = []
    for name, content in contents.items():
        file = folder / f"{name}.safetensors"
        file.write_bytes(content)
        found.append(Case(f"weights ({name})", partial(load_backbone, file)))
    header = {"kind": "images", "encoding": "raw", "quality": None, "short_side": 32, "every": 1, "source": ""}
    row = {"name": "a", "height": 1, "width": 1, "offset": 0, "frames": 1, "crc32": 0}
    stores: dict[str, tuple[dict[str, Any], list[Any]]] = {
        "vast": ({}, [{**row, "height": 2**40, "width": 2**40}]),
        "negative": ({}, [{**row, "height": -1, "frames": -3}]),
        "text": ({}, [{**row, "height": "1"}]),
        "no rows": ({}, []),
        "list": ({}, [[1, 2]]),
        "offset": ({}, [{**row, "offset": 2**70}]),
        "kind": ({"kind": "../../x"}, [row]),
        "format": ({"format": [1]}, [row]),
        "format 9": ({"format": 9}, [row]),
        "side": ({"short_side": "a"}, [row]),
        "frames": ({}, [{**row, "frames": 2**62}]),
    }
    for name, (changes, rows) in stores.items():
        store = folder / f"store-{name.replace(' ', '-')}"
        store.mkdir()
        (store / "store.json").write_text(json.dumps({**header, "complete": True, "format": 1, **changes}))
        (store / "index.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (store / "skipped.jsonl").write_text("")
        (store / "data.bin").write_bytes(b"\1\2\3")

        found.append(Case(f"store ({name})", partial(_read_store, store)))
    return found


def _safetensors(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _read_config(file: Path) -> None:
    check_config(read_config(file))


def _read_metrics(run: Run) -> Any:
    return list(run.metrics()), run.metrics_warning


def _read_store(folder: Path) -> None:
    store = Store(folder)
    for item in range(len(store)):
        store.read(item, [0])


def _metrics(folder: Path) -> list[Case]:
    lines = {
        "nested": b"[" * 100_000,
        "long number": b'{"iteration": ' + b"9" * 5000 + b', "kind": "train"}',
        "nan": b'{"iteration": NaN, "kind": "validation"}',
        "many keys": json.dumps({f"k{number}": 0 for number in range(100_000)}).encode(),
        "not text": b"\xff\xfe\x00",
        "no object": b"3",
        "kind": b'{"iteration": 1, "kind": ["train"]}',
    }
    found = []
    for name, line in lines.items():
        run = Run(folder / f"metrics-{name.replace(' ', '-')}")
        run.folder.mkdir()
        run.metrics_file.write_bytes(line + b"\n")
        found.append(Case(f"metrics ({name})", partial(_read_metrics, run)))
    return found
