from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unshuffle.data.dataset import Square, open_dataset, voc_objects
from unshuffle.data.media import read_image
from unshuffle.data.voc import CLASSES, Devkit, find_image_set, read_mask
from unshuffle.errors import UserError

MakeDevkit = Callable[..., Path]


def test_classes_are_in_the_order_of_the_devkit() -> None:
    assert len(CLASSES) == 20 and list(CLASSES) == sorted(CLASSES)


def test_boxes_enclose_the_painted_objects(devkit: MakeDevkit) -> None:
    images = Devkit(devkit(test=5), 2007).with_objects("test")
    assert len(images) == 5 and images.name == "VOC2007 test" and not images.skipped
    for image in images.images:
        pixels = read_image(image.path).astype(int)
        left, top, right, bottom = map(int, image.objects[0].box)
        colourful = np.ptp(pixels, axis=2) > 60
        assert colourful[top:bottom, left:right].mean() > 0.5
        outside = colourful.copy()
        for annotated in image.objects:
            x1, y1, x2, y2 = map(int, annotated.box)
            outside[max(0, y1 - 2) : y2 + 2, max(0, x1 - 2) : x2 + 2] = False
        assert outside.mean() < 0.02


def test_annotations_count_from_one_and_include_the_last_pixel(devkit: MakeDevkit, annotate: Callable) -> None:
    root = devkit(test=1)
    annotate(root / "VOC2007/Annotations/000000.xml", [("cat", (1, 1, 104, 88), True), ("dog", (5, 6, 7, 8), False)])
    cat, dog = Devkit(root, 2007).with_objects("test").images[0].objects
    assert cat == (CLASSES.index("cat"), (0, 0, 104, 88), True)
    assert dog == (CLASSES.index("dog"), (4, 5, 7, 8), False)


def truncate_xml(folder: Path) -> None:
    (folder / "Annotations/000000.xml").write_text("<annotation><object>")


def delete_xml(folder: Path) -> None:
    (folder / "Annotations/000000.xml").unlink()


def rename_class(folder: Path) -> None:
    file = folder / "Annotations/000000.xml"
    annotation = file.read_text()
    for name in ("aeroplane", "bicycle", "bird"):
        annotation = annotation.replace(name, "unicorn")
    file.write_text(annotation)


def replace_number_by_text(folder: Path) -> None:
    (folder / "Annotations/000000.xml").write_text(
        "<annotation><object><name>cat</name><bndbox><xmin>x</xmin></bndbox></object></annotation>"
    )


def move_box_outside(folder: Path) -> None:
    (folder / "Annotations/000000.xml").write_text(
        "<annotation><object><name>cat</name><bndbox><xmin>500</xmin><ymin>1</ymin><xmax>600</xmax><ymax>9</ymax>"
        "</bndbox></object></annotation>"
    )


def delete_image(folder: Path) -> None:
    (folder / "JPEGImages/000000.jpg").unlink()


def truncate_image(folder: Path) -> None:
    file = folder / "JPEGImages/000000.jpg"
    file.write_bytes(file.read_bytes()[:300])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate_xml, "the annotation cannot be read"),
        (delete_xml, "the annotation is missing"),
        (rename_class, "it is annotated with 'unicorn', which is not a VOC class"),
        (replace_number_by_text, "the annotation cannot be read"),
        (move_box_outside, "a box has no area within the image"),
        (delete_image, "the image is missing"),
        (truncate_image, "the image cannot be read"),
    ],
)
def test_unusable_images_are_skipped_and_counted(
    devkit: MakeDevkit, damage: Callable[[Path], None], reason: str
) -> None:
    root = devkit(test=3, single=0)
    (root / "VOC2007/ImageSets/Main/single.txt").write_text("000000\n")
    damage(root / "VOC2007")
    images = Devkit(root, 2007).with_objects("test")
    assert [image.name for image in images.images] == ["000001", "000002"]
    assert images.skipped == [("000000", reason)] and images.skip_reasons() == f"1 because {reason}"
    with pytest.raises(UserError, match="no image of VOC2007 single can be used: 1 because"):
        Devkit(root, 2007).with_objects("single")


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (None, "the mask is missing"),
        (np.zeros((88, 104, 3), np.uint8), "the mask holds colours instead of labels"),
        (np.zeros((88, 103), np.uint8), "the mask and the image differ in size"),
        (np.full((88, 104), 21, np.uint8), "the mask has labels that are not VOC's"),
        (np.full((88, 104), 255, np.uint8), "every pixel of the mask is labelled 'ignore'"),
        ("broken", "the mask cannot be read"),
    ],
)
def test_unusable_masks_are_skipped_and_counted(devkit: MakeDevkit, mask: np.ndarray | str | None, reason: str) -> None:
    root = devkit(val=2)
    file = root / "VOC2007/SegmentationClass/000000.png"
    if mask is None:
        file.unlink()
    elif isinstance(mask, str):
        file.write_text(mask)
    else:
        Image.fromarray(mask).save(file)
    images = Devkit(root, 2007).with_masks("val")
    assert len(images) == 1 and images.skipped == [("000000", reason)]


def test_palette_masks_are_read_as_labels(tmp_path: Path) -> None:
    labels = np.array([[0, 1, 20], [255, 3, 0]], np.uint8)
    image = Image.fromarray(labels)
    image.putpalette([value for index in range(256) for value in (index * 7 % 256, 255 - index, index)])
    image.save(tmp_path / "mask.png")
    assert Image.open(tmp_path / "mask.png").mode == "P"
    assert np.array_equal(read_mask(tmp_path / "mask.png"), labels)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grayscale_and_cmyk_images_are_read(devkit: MakeDevkit, mode: str) -> None:
    root = devkit(test=1)
    file = root / "VOC2007/JPEGImages/000000.jpg"
    Image.open(file).convert(mode).save(file)
    (image,) = Devkit(root, 2007).with_objects("test").images
    assert image.size == (88, 104) and read_image(image.path).shape == (88, 104, 3)


def test_devkits_and_image_sets_are_found_by_name(devkit: MakeDevkit, tmp_path: Path) -> None:
    root = devkit(train=2, val=1)
    (root / "VOC2007/ImageSets/Main/cat_train.txt").write_text("000000 -1\n")
    assert Devkit(root / "VOC2007", 2007).folder == Devkit(root, 2007).folder
    with pytest.raises(UserError, match="no VOC devkit of 2012"):
        Devkit(root, 2012)
    with pytest.raises(UserError, match=r"no image set 'test' in .*; choose one of train, val$"):
        Devkit(root, 2007).with_objects("test")
    names = tmp_path / "seg11valid.txt"
    names.write_text("000001\n\n000002 1\n")
    image_set = Devkit(root, 2007).with_masks(str(names))
    assert image_set.name == "VOC2007 seg11valid" and [image.name for image in image_set.images] == ["000001", "000002"]
    names.write_text("\n")
    with pytest.raises(UserError, match="is empty"):
        Devkit(root, 2007).with_masks(str(names))
    names.write_text("000001\n000001\n")
    with pytest.raises(UserError, match="lists 000001 more than once"):
        Devkit(root, 2007).with_masks(str(names))


def test_limited_and_filtered_image_sets(devkit: MakeDevkit) -> None:
    images = Devkit(devkit(test=4), 2007).with_objects("test", limit=3)
    assert len(images) == 3
    filtered = images.filtered(lambda image: image.name != "000001", "it is the second")
    assert len(filtered) == 2 and filtered.skipped == [("000001", "it is the second")]
    with pytest.raises(UserError, match="no image of VOC2007 test can be used: 3 because of nothing"):
        images.filtered(lambda image: False, "of nothing")


def test_objects_are_cut_out(devkit: Callable[..., Path], annotate: Callable) -> None:
    root = devkit(test=2)
    boxes = [("cat", (11, 21, 50, 60), True), ("dog", (1, 1, 30, 30), False), ("cow", (1, 1, 4, 4), False)]
    annotate(root / "VOC2007/Annotations/000000.xml", boxes)
    (root / "VOC2007/Annotations/000001.xml").write_text("<annotation>")
    objects = voc_objects(root, 2007, "test", min_pixels=900)
    assert [CLASSES[label] for label in objects.labels] == ["cat", "dog"] and objects.kind == "objects"
    assert objects.skipped == [("000001", "the annotation cannot be read")]
    whole = read_image(objects.paths()[0])
    assert (objects.with_square(Square(40, "squash")).load(0)[0] == whole[20:60, 10:50]).all()
    easy = voc_objects(root, 2007, "test", min_pixels=900, difficult=False)
    assert list(easy.labels) == [CLASSES.index("dog")]
    with pytest.raises(UserError, match="no object of VOC2007 test has 10000 pixels"):
        voc_objects(root, 2007, "test")


def test_the_papers_objects_have_ten_thousand_pixels(devkit: Callable[..., Path], annotate: Callable) -> None:
    """Each object is an item, whatever else is in the image; a pixel too few in the box discards it, and it alone."""
    root = devkit(test=2)
    kept = [("cat", (1, 1, 100, 100), False), ("cat", (101, 51, 225, 130), True), ("dog", (1, 1, 300, 200), False)]
    discarded = [("cow", (1, 1, 99, 101), False), ("dog", (202, 1, 350, 100), False)]  # partly outside
    for name, boxes in (("000000", [kept[0], *discarded, kept[1]]), ("000001", [kept[2]])):
        Image.new("RGB", (300, 200)).save(root / f"VOC2007/JPEGImages/{name}.jpg")
        annotate(root / f"VOC2007/Annotations/{name}.xml", boxes)
    objects = voc_objects(root, 2007, "test")
    assert [CLASSES[label] for label in objects.labels] == ["cat", "cat", "dog"]
    boxes = [name.partition("#")[2] for name in objects.names]
    assert boxes == ["0,0,100,100", "100,50,225,130", "0,0,300,200"]
    assert [CLASSES[label] for label in voc_objects(root, 2007, "test", difficult=False).labels] == ["cat", "dog"]


def test_objects_too_small_to_be_read_are_left_out_before(devkit: Callable[..., Path], annotate: Callable) -> None:
    root = devkit(test=1)
    annotate(root / "VOC2007/Annotations/000000.xml", [("cat", (1, 1, 15, 40), False), ("dog", (1, 1, 16, 40), False)])
    assert list(voc_objects(root, 2007, "test", min_pixels=1).labels) == [CLASSES.index("dog")]


def test_an_image_set_is_an_address_of_its_objects(devkit: Callable[..., Path], annotate: Callable) -> None:
    root = devkit(test=1)
    Image.new("RGB", (300, 200)).save(root / "VOC2007/JPEGImages/000000.jpg")
    annotate(
        root / "VOC2007/Annotations/000000.xml", [("cat", (1, 1, 150, 150), False), ("dog", (1, 1, 50, 50), False)]
    )
    file = root / "VOC2007/ImageSets/Main/test.txt"
    assert find_image_set(root) is None and find_image_set(file.with_name("other.txt")) is None
    assert find_image_set(file) is not None
    objects = open_dataset(file, square=Square(32))
    assert objects.kind == "objects" and objects.names == ["JPEGImages/000000.jpg#0,0,150,150"]
    assert objects.location(0) == str(root / "VOC2007/JPEGImages/000000.jpg")
    assert list(objects.labels) == [CLASSES.index("cat")] and objects.load(0).shape == (1, 32, 32, 3)
