"""Baseline: rotation prediction (Gidaris et al. 2018) alone, with the preset `small`.

    python benchmarks/rotation.py --images FOLDER --out FILE.safetensors [--iterations 6000] [--seed 0] [--device cuda]

228 images in four rotations at 112 px are about the arithmetic of 128 images and 128 clips in crops of 75 px. The run
folder is FILE without its suffix. Evaluate with `unshuffle evaluate retrieval --weights FILE ...`.
"""

import argparse
import shutil
from pathlib import Path

import unshuffle

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=6000)
    parser.add_argument("--images_a_step", type=int, default=228)
    parser.add_argument("--crop", type=int, default=112)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    milestones = [round(0.7 * args.iterations), round(0.9 * args.iterations)]
    run = unshuffle.pretrain(
        args.images,
        out=args.out.with_suffix(""),
        preset="small",
        tasks="R",
        seed=args.seed,
        device=args.device,
        optim={"iterations": args.iterations, "schedule": "steps", "milestones": milestones},
        rotation={"crop_size": args.crop, "batch_size": args.images_a_step},
        log={"pictures": False},
    )
    print(shutil.copy(run.weights, args.out))
