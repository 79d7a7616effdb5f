"""Time of each convolution of CaffeNet's training pass on a GPU, in equivalent forms.

    python benchmarks/convolutions.py [--crops 2176]

bf16, channels-last, cuDNN's fastest algorithms. Forward, gradient of the input and gradient of the weight in
milliseconds; TFLOP/s count the arithmetic of the plain form, so that padding does not count as work. Results go to
results/convolutions_cuda.csv.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from table import write_table
from torch.nn import functional as F

REPEATS = 15


@dataclass(frozen=True)
class Form:
    """One way to compute a layer."""

    layer: str
    form: str
    inputs: int
    outputs: int
    kernel: tuple[int, int]
    size: tuple[int, int]
    padding: int = 0
    stride: int = 1
    groups: int = 1
    times: int = 1
    """Number of such convolutions in the layer."""


PLAIN = Form("conv1", "as it is", 3, 96, (11, 11), (75, 75), stride=2)
FORMS = [
    PLAIN,
    Form("conv1", "space to depth, 12 channels", 12, 96, (6, 6), (38, 38)),
    Form("conv1", "space to depth, 16 channels", 16, 96, (6, 6), (38, 38)),
    Form("conv1", "unrolled, 72 channels", 72, 96, (6, 1), (38, 33)),
    Form("conv1", "unrolled, 80 channels", 80, 96, (6, 1), (38, 33)),
    Form("conv1", "four outputs at once, 48 channels", 48, 384, (4, 4), (20, 20)),
    Form("conv2", "two groups", 96, 256, (5, 5), (16, 16), 2, groups=2),
    Form("conv2", "two halves", 48, 128, (5, 5), (16, 16), 2, times=2),
    Form("conv2", "dense with zeros", 96, 256, (5, 5), (16, 16), 2),
    Form("conv3", "as it is", 256, 384, (3, 3), (7, 7), 1),
    Form("conv4", "two groups", 384, 384, (3, 3), (7, 7), 1, groups=2),
    Form("conv4", "two halves", 192, 192, (3, 3), (7, 7), 1, times=2),
    Form("conv4", "dense with zeros", 384, 384, (3, 3), (7, 7), 1),
    Form("conv5", "two groups", 384, 256, (3, 3), (7, 7), 1, groups=2),
    Form("conv5", "two halves", 192, 128, (3, 3), (7, 7), 1, times=2),
    Form("conv5", "dense with zeros", 384, 256, (3, 3), (7, 7), 1),
]
MULTIPLICATIONS = {
    "conv1": 33 * 33 * 96 * 363,
    "conv2": 16 * 16 * 256 * 48 * 25,
    "conv3": 49 * 384 * 256 * 9,
    "conv4": 49 * 384 * 192 * 9,
    "conv5": 49 * 256 * 192 * 9,
}
"""Multiplications of a layer for one crop."""


def main() -> None:
    """Measure all forms and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crops", type=int, default=2176)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    rows = [measure(form, args.crops) for form in FORMS]
    write_table("convolutions_cuda", rows, "cuda", "bf16")


def measure(form: Form, crops: int) -> dict[str, str]:
    """Return milliseconds and TFLOP/s of one form."""
    images = torch.randn(crops, form.inputs, *form.size, device="cuda", dtype=torch.bfloat16)
    images = images.to(memory_format=torch.channels_last)
    weight = torch.randn(form.outputs, form.inputs // form.groups, *form.kernel, device="cuda", dtype=torch.bfloat16)
    weight = weight.to(memory_format=torch.channels_last)

    def forward() -> torch.Tensor:
        return F.conv2d(images, weight, None, form.stride, form.padding, 1, form.groups)

    gradient = torch.randn_like(forward())

    def backward(of_input: bool) -> object:
        pair = [form.stride] * 2, [form.padding] * 2, [1, 1]
        mask = [of_input, not of_input, False]
        return torch.ops.aten.convolution_backward(
            gradient, images, weight, [0], *pair, False, [0, 0], form.groups, mask
        )

    parts: dict[str, Callable[[], object]] = {
        "forward": forward,
        "of_input": lambda: backward(True),
        "of_weight": lambda: backward(False),
    }
    times = {name: form.times * milliseconds(work) for name, work in parts.items()}
    tflop = 2 * crops * MULTIPLICATIONS[form.layer] / 1e9
    return {
        "layer": form.layer,
        "form": form.form,
        **{f"{name}_ms": f"{value:.3f}" for name, value in times.items()},
        **{f"{name}_tflops": f"{tflop / value:.0f}" for name, value in times.items()},
    }


def milliseconds(work: Callable[[], object]) -> float:
    """Return the median of some runs on the device."""
    for _ in range(4):
        work()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return statistics.median(times)


if __name__ == "__main__":
    main()
