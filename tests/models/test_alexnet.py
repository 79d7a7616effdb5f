import torch
import torchvision

from unshuffle.models import build_backbone


def test_it_is_torchvisions() -> None:
    with torch.device("meta"):
        theirs = torchvision.models.alexnet(weights=None)
    ours = build_backbone("alexnet").eval()
    wanted = {key: value.shape for key, value in theirs.state_dict().items() if key.startswith("features.")}
    assert {key: value.shape for key, value in ours.state_dict().items()} == wanted
    theirs.features.to_empty(device="cpu").load_state_dict(ours.get_submodule("features").state_dict())
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        maps = ours(images)
        assert maps.shape == (2, 256, 6, 6)
        assert torch.equal(maps, theirs.features(images))
