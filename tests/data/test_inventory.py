import csv
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unshuffle.data.inventory import skipped_file, take_inventory, write_skipped
from unshuffle.data.media import BadMedia, read_frames, read_image
from unshuffle.errors import UserError


def photo(width: int = 48, height: int = 32) -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def test_nested_images_of_any_case_are_found_in_order_of_relative_path(tmp_path: Path) -> None:
    names = ["b.JPG", "a/z.png", "a.webp", "a/b/c.TiFF", "no.txt", ".hidden.png", ".cache/x.png", "film.mpg"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "folder.png" / "in.png").touch()
    names = list(take_inventory(tmp_path, "images").files)
    assert names == ["a.webp", "a/b/c.TiFF", "a/z.png", "b.JPG", "folder.png/in.png"]


def test_links_to_folders_are_followed_but_cycles_are_not(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.png").touch()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "images" / "again").symlink_to(tmp_path / "images")
    found = take_inventory(tmp_path / "images", "images").files
    assert found == {"linked/x.png": tmp_path / "images" / "linked" / "x.png"}


def test_missing_folder_and_file_in_place_of_folder_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        take_inventory(tmp_path / "nowhere", "images")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not a folder"):
        take_inventory(tmp_path / "file", "images")


def test_nested_videos_of_any_case_are_found(tmp_path: Path) -> None:
    for name in ["b.MP4", "a/x.avi", "a.webm", "a/.y.mkv", "photo.jpg"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(take_inventory(tmp_path, "videos").files) == ["a.webm", "a/x.avi", "b.MP4"]


def test_what_is_no_file_is_found_and_refused_with_a_reason(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.jpg")
    (tmp_path / "link.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "device.jpg").symlink_to("/dev/zero")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "album.jpg").mkdir()
    photo().save(tmp_path / "album.jpg" / "good.jpg")
    reasons = {
        "fifo.jpg": "it is a named pipe, not a file",
        "link.jpg": "it is a link to a file that does not exist",
        "device.jpg": "it is a device, not a file",
        "folder.jpg": "it is a folder, not a file",
    }
    if len(str(tmp_path)) < 90:  # the system's limit for the path of a socket is 108
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "socket.jpg"))
        reasons["socket.jpg"] = "it is a socket, not a file"
    found = take_inventory(tmp_path, "images").files
    assert set(found) == {*reasons, "album.jpg/good.jpg"}
    for name, reason in reasons.items():
        with pytest.raises(BadMedia) as caught:
            read_image(found[name])
        assert str(caught.value) == reason
        with pytest.raises(BadMedia) as caught:
            list(read_frames(found[name]))
        assert str(caught.value) == reason


def test_a_subfolder_that_cannot_be_read_is_found_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    photo().save(tmp_path / "a.jpg")
    scandir, access = os.scandir, os.access

    def refused(path: Any) -> Any:  # as permissions do not hold for root
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "closed" and access(path, mode))
    assert list(take_inventory(tmp_path, "images").files) == ["a.jpg", "closed"]
    with pytest.raises(BadMedia, match="a folder that cannot be read: permission denied"):
        read_image(tmp_path / "closed")
    with pytest.raises(UserError, match="closed cannot be read: check its permissions"):
        take_inventory(tmp_path / "closed", "images")


# what is recognised by its content, and what is ignored


def test_content_decides_where_the_name_says_nothing(tmp_path: Path, write_video: Callable[..., Path]) -> None:
    for name, kind in {"no_extension": "JPEG", "note.txt": "PNG", "photo.jpg_large": "WEBP", "film.mp4": "BMP"}.items():
        photo().save(tmp_path / name, kind)
    shutil.move(write_video(tmp_path / "x.mp4"), tmp_path / "clip")
    shutil.move(write_video(tmp_path / "x.avi"), tmp_path / "clip.dat")
    shutil.move(write_video(tmp_path / "x.gif", codec="gif"), tmp_path / "moving")
    (tmp_path / "readme.txt").write_text("BMW and other cars")
    images, videos = take_inventory(tmp_path, "images"), take_inventory(tmp_path, "videos")
    assert list(images.files) == ["film.mp4", "moving", "no_extension", "note.txt", "photo.jpg_large"]
    assert images.ignored == {".dat": 1, ".txt": 1, "without extension": 1}
    assert list(videos.files) == ["clip", "clip.dat", "film.mp4", "moving"], "film.mp4 is then listed as skipped"
    assert videos.ignored == {".txt": 2, ".jpg_large": 1, "without extension": 1}


def test_every_file_is_counted(tmp_path: Path) -> None:
    photo().save(tmp_path / "a.jpg")
    (tmp_path / "album").mkdir()
    for name in ("b.txt", "album/c.TXT", "notes.md", ".DS_Store", "album/Thumbs.db", "desktop.ini", "Makefile"):
        (tmp_path / name).write_text("text")
    for folder in (".git", "__MACOSX", "album/@eaDir"):
        (tmp_path / folder).mkdir()
        photo().save(tmp_path / folder / "preview.jpg")
    inventory = take_inventory(tmp_path, "images")
    assert list(inventory.files) == ["a.jpg"]
    counts = [("hidden", 3), ("hidden folders", 3), (".txt", 2), (".md", 1), ("without extension", 1)]
    assert list(inventory.ignored.items()) == counts, "the most frequent first"


def test_raw_photos_and_sound_are_not_taken_for_what_they_begin_like(tmp_path: Path) -> None:
    photo().save(tmp_path / "raw.nef", "TIFF")
    (tmp_path / "song.wma").write_bytes(b"\x30\x26\xb2\x75\x8e\x66\xcf\x11" + bytes(600))
    (tmp_path / "song.bin").write_bytes(b"\0\0\0\x20ftypM4A " + bytes(600))
    for kind in ("images", "videos"):
        inventory = take_inventory(tmp_path, kind)  # type: ignore[arg-type]
        assert inventory.files == {} and inventory.ignored == {".nef": 1, ".wma": 1, ".bin": 1}


def test_pipes_and_links_without_a_telling_name_are_ignored_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    assert take_inventory(tmp_path, "images").ignored == {"without extension": 2}


def test_names_need_not_be_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    photo().save(tmp_path / name, "JPEG")
    (tmp_path / os.fsdecode(b"x.\xff")).write_text("text")
    inventory = take_inventory(tmp_path, "images")
    assert list(inventory.files) == [name] and inventory.ignored == {os.fsdecode(b".\xff"): 1}


# lists of skipped files


def test_the_list_of_skipped_files(tmp_path: Path) -> None:
    file = write_skipped(tmp_path / "new" / "skipped.csv", [("=a.jpg", "empty"), (os.fsdecode(b"\xe9.jpg"), "b, c")])
    with file.open(newline="", encoding="utf-8") as table:
        rows = list(csv.reader(table))
    assert rows == [["file", "reason"], ["'=a.jpg", "empty"], ["\\udce9.jpg", "b, c"]]


def test_addresses_have_different_lists_in_the_cache(tmp_path: Path) -> None:
    files = {skipped_file(address, tmp_path) for address in ("/a/photos", "/b/photos", "s3://bucket/{0..9}.tar", "/")}
    assert len(files) == 4 and all(file.parent == tmp_path / "skipped" for file in files)
    assert skipped_file("/a/photos", tmp_path).name.startswith("photos-")
