"""Sources of images and videos, packed stores and tar shards, batches and crops."""
