"""Where the parts of a Hugging Face directory lie. Without PyTorch, so that an expectation can be made without it."""

import json, os

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"


def read_config(source):
    with open(os.path.join(source, CONFIG)) as file:
        return json.load(file)


def shard_files(source):
    """Paths of the shards: those that the index names, or the only one."""
    names = ["model.safetensors"]
    if os.path.exists(os.path.join(source, INDEX)):
        with open(os.path.join(source, INDEX)) as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    return [os.path.join(source, name) for name in names]
