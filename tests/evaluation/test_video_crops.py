import numpy as np
import pytest
import torch
from PIL import Image

from unshuffle.evaluation.video_crops import (
    Boxes,
    draw_boxes,
    evaluation_crops,
    frame_side,
    middle_frames,
    resized,
    segment_frames,
    training_crops,
)

RNG = np.random.default_rng


def as_is(images: torch.Tensor) -> torch.Tensor:
    return images


def smooth(count: int, height: int, width: int) -> np.ndarray:
    coarse = RNG(0).integers(0, 256, (count, 5, 6, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(one).resize((width, height))) for one in coarse])


def test_frames_are_as_much_larger_than_crops_as_256_is_than_224() -> None:
    assert frame_side(224) == 256 and frame_side(227) == 259


@pytest.mark.parametrize("length", [3, 7, 30, 31, 32])
def test_one_frame_of_each_segment(length: int) -> None:
    drawn = segment_frames(np.full(2000, length), 3, RNG(0))
    for segment in range(3):
        expected = {frame for frame in range(length) if segment * length // 3 <= frame < (segment + 1) * length // 3}
        assert set(drawn[:, segment].tolist()) == expected


def test_segments_of_videos_of_different_lengths() -> None:
    drawn = segment_frames(np.array([300, 2, 1]), 3, RNG(0))
    assert (drawn[0] // 100).tolist() == [0, 1, 2]
    assert drawn[1:].tolist() == [[0, 0, 1], [0, 0, 0]], "a short video repeats frames"


@pytest.mark.parametrize("length", [1, 2, 24, 25, 26, 180, 1776])
def test_25_frames_in_the_middle_of_their_segments(length: int) -> None:
    assert middle_frames(length, 25).tolist() == [int(length / 50 + length / 25 * k + 1e-9) for k in range(25)]


def test_boxes_are_the_13_places_of_10_shapes() -> None:
    height, width = 259, 345
    boxes = draw_boxes(np.tile([height, width], (20000, 1)), RNG(0))
    sizes = [259, 226, 194, 170]
    expected = set()
    for i, tall in enumerate(sizes):
        for wide in sizes[max(0, i - 1) : i + 2]:
            down, right = height - tall, width - wide
            for top, left in [
                *((0, 0), (0, 4), (4, 0), (4, 4), (2, 2)),  # corners, centre
                *((0, 2), (2, 0), (2, 4), (4, 2)),  # middles of the edges
                *((1, 1), (1, 3), (3, 1), (3, 3)),  # half way from the centre to the corners
            ]:
                expected.add((down * top // 4, right * left // 4, tall, wide))
    assert len({(tall, wide) for _, _, tall, wide in expected}) == 10
    assert set(map(tuple, np.hstack([boxes.corners, boxes.sides]).tolist())) == expected
    assert 0.45 < boxes.mirrored.mean() < 0.55


def test_boxes_follow_the_size_of_each_video() -> None:
    frame_sizes = RNG(1).integers(16, 400, (500, 2))
    boxes = draw_boxes(frame_sizes, RNG(0))
    shares = boxes.sides / frame_sizes.min(axis=1, keepdims=True)
    assert shares.max() == 1 and shares.min() > 0.6
    assert (boxes.corners >= 0).all() and (boxes.corners + boxes.sides <= frame_sizes).all()


def test_a_box_cuts_all_frames_alike() -> None:
    frames = RNG(0).integers(0, 256, (2, 9, 8, 3), dtype=np.uint8)
    boxes = Boxes(np.array([[0, 0], [2, 1]]), np.array([[9, 8], [4, 5]]), np.array([0, 1]))
    np.testing.assert_array_equal(boxes.cut(1, frames), frames[:, 2:6, 1:6])


def test_boxes_by_shape() -> None:
    sides = np.array([[3, 4], [4, 3], [3, 4], [3, 3], [4, 3], [3, 4]])
    groups = Boxes(np.zeros((6, 2), np.int64), sides, np.zeros(6, np.int64)).by_shape()
    assert [group.tolist() for group in groups] == [[3], [0, 2, 5], [1, 4]]


def test_training_crops_are_what_pillow_makes() -> None:
    cuts = [smooth(4, 60, 70).reshape(2, 2, 60, 70, 3), smooth(2, 30, 24).reshape(1, 2, 30, 24, 3)]
    mirrored = torch.tensor([False, True, True])
    crops = training_crops([torch.from_numpy(cut) for cut in cuts], mirrored, 48, as_is)
    assert crops.shape == (6, 3, 48, 48)
    place = 0
    for video, flip in zip([*cuts[0], *cuts[1]], mirrored.tolist(), strict=True):
        for frame in video:
            image = Image.fromarray(frame).resize((48, 48), Image.Resampling.BILINEAR)
            expected = np.asarray(image)[:, ::-1] if flip else np.asarray(image)
            np.testing.assert_allclose(crops[place].permute(1, 2, 0) * 255, expected, atol=1.01)
            place += 1


def test_ten_crops() -> None:
    rows, columns = np.mgrid[:109, :130]
    frames = np.stack([np.stack([rows, columns, rows * 0 + k], axis=-1) for k in (7, 9)]).astype(np.uint8)
    crops = (evaluation_crops(torch.from_numpy(frames), 96, 10, as_is) * 255).round().numpy()
    assert crops.shape == (20, 3, 96, 96)
    corners = [(0, 0), (0, 34), (13, 0), (13, 34), (6, 17)]
    for place, (top, left) in enumerate(corners):
        for frame in range(2):
            expected = frames[frame, top : top + 96, left : left + 96].transpose(2, 0, 1)
            np.testing.assert_array_equal(crops[2 * place + frame], expected)
            np.testing.assert_array_equal(crops[10 + 2 * place + frame], expected[:, :, ::-1])
    centre = evaluation_crops(torch.from_numpy(frames), 96, 1, as_is) * 255
    np.testing.assert_array_equal(centre.round().numpy(), crops[8:10])


@pytest.mark.parametrize(("height", "width"), [(60, 80), (240, 180)])
def test_frames_of_another_size_are_scaled_before_they_are_cut(height: int, width: int) -> None:
    frames = smooth(1, height, width)
    wide, tall = (109, 145) if height > width else (145, 109)
    scaled = np.asarray(Image.fromarray(frames[0]).resize((wide, tall), Image.Resampling.BILINEAR))
    crops = evaluation_crops(torch.from_numpy(frames), 96, 10, as_is)
    np.testing.assert_allclose(crops[3].permute(1, 2, 0) * 255, scaled[-96:, -96:], atol=1.01)


def test_crops_are_normalised_one_by_one() -> None:
    def by_mean(images: torch.Tensor) -> torch.Tensor:
        assert images.shape[1:] == (3, 32, 32)
        return images - images.mean(dim=(2, 3), keepdim=True)

    frames = torch.from_numpy(smooth(2, 36, 40))
    for crops in (
        evaluation_crops(frames, 32, 10, by_mean),
        training_crops([frames[None]], torch.tensor([True]), 32, by_mean),
    ):
        torch.testing.assert_close(crops.mean(dim=(2, 3)), torch.zeros(len(crops), 3), atol=1e-5, rtol=0)


def test_bytes_of_the_right_size_are_left_alone() -> None:
    frames = torch.arange(48, dtype=torch.uint8).view(1, 4, 4, 3)
    assert torch.equal(resized(frames, 4, 4), frames.permute(0, 3, 1, 2) / 255)
