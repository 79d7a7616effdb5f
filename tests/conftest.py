"""What all tests share: one thread, so that the tests take turns politely and sums come out the same everywhere."""

import torch

torch.set_num_threads(1)
