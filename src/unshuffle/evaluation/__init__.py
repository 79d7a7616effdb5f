"""Evaluations of a backbone: retrieval, probes, fine-tuning, action recognition, RankMe and PASCAL VOC."""
