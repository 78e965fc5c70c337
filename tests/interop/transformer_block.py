"""Asks a checkpoint for a GPT model's params as Megatron-Core's own TransformerBlock does.

The block decides, by the content metadata that it is handed, whether its layers are one tensor with a leading axis or have a name each; that
decision and the names are the real code's. Its layers are stood in for by tables of params, in the sizes of the expectation.
"""
import types

import torch
import torch.distributed as dist
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

LAYERS = "decoder.layers."


def sharded(state, prefix, offsets=()):
    world = dist.group.WORLD
    return make_sharded_tensors_for_checkpoint(state, prefix, sharded_offsets=offsets, tp_group=world, dp_cp_group=world)


class Layer:
    """A layer by its params."""

    def __init__(self, index, state):
        self.layer_number, self.state = index + 1, state

    def sharded_state_dict(self, prefix, offsets, metadata):
        return sharded(self.state, prefix, offsets)


def by_layer(tensors):
    """Whatever the names: what is in no layer, and for each layer what it has, as (dtype, shape, key, index on the leading axis)."""
    rest, layers = {}, {}
    for key, (dtype, shape) in tensors.items():
        head, _, tail = key.removeprefix(LAYERS).partition(".")
        if not key.startswith(LAYERS):
            rest[key] = (dtype, shape, key, None)
        elif head.isdigit():
            layers.setdefault(int(head), {})[tail] = (dtype, shape, key, None)
        else:
            for index in range(shape[0]):
                layers.setdefault(index, {})[f"{head}.{tail}"] = (dtype, shape[1:], key, index)
    return rest, [layers[index] for index in sorted(layers)]


def requests(tensors, modules, content_metadata, fill):
    """What the model asks for: the state dict, and where each of its tensors stands in the expectation, as (key, index or None).

    `tensors` is key to (dtype, shape), layers stacked or not; `modules` those of a layer that have an extra state; `fill` makes a tensor.
    """
    rest, layers = by_layer(tensors)
    places = {}

    def state(params, prefix, objects):
        for name, (_, _, key, index) in params.items():
            places[prefix + name] = (key, index)
        held = {name: fill(shape, dtype) for name, (dtype, shape, _, _) in params.items()}
        return {**held, **{f"{module}._extra_state": torch.empty(0, dtype=torch.uint8) for module in objects}}

    stages = [Layer(index, state(params, f"{LAYERS}{index}.", modules)) for index, params in enumerate(layers)]
    config = TransformerConfig(num_layers=len(layers), hidden_size=1, num_attention_heads=1)
    block = types.SimpleNamespace(
        config=config, vp_stage=None, pg_collection=types.SimpleNamespace(pp=None), layers=stages, named_children=lambda: []
    )
    named = TransformerBlock.sharded_state_dict(block, "decoder.", metadata=content_metadata)
    named.update(sharded(state(rest, "", ["decoder.final_layernorm"]), ""))
    return named, places
