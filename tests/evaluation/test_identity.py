import torch

from unshuffle.evaluation.identity import digest, fingerprint
from unshuffle.models import build_backbone


def test_a_digest_follows_every_thing_and_their_order() -> None:
    digests = [digest(things) for things in (["a", 1], [1, "a"], ["a1"], ["a", 2], [])]
    assert len(set(digests)) == 5 and digest(iter(["a", 1])) == digests[0]
    assert digest(["caf\udce9.png"]) != digest(["caf.png"]), "names of files need not be valid text"


def test_a_fingerprint_follows_every_weight() -> None:
    torch.manual_seed(0)
    backbone = build_backbone("tiny").for_evaluation()
    one = fingerprint(backbone)
    assert fingerprint(backbone) == one
    with torch.no_grad():
        next(backbone.parameters()).view(-1)[3] += 1e-6
    assert fingerprint(backbone) != one
