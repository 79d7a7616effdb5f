"""Transfer to PASCAL VOC: classification, detection and segmentation (the paper's Tab. 4)."""
