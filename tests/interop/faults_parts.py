"""Faults in conversions of a part of a model, and the checks that must see them."""
import os

import torch

import check_export, check_ranks, check_torch_dist
from damage import *
from families import FAMILIES
from part import Part

# Of each model one; the first lacks prediction layers too.
CASES = ["first and headless", "first", "first of fp8", "by layer"]
EMBEDDING = "embedding.word_embeddings.weight"
# Of a layer that is left out.
LEFT_OUT = "decoder.layers.6.mlp.linear_fc1.layer_norm_weight"
OBJECT_LEFT_OUT = "decoder.layers.6.self_attention.linear_proj._extra_state/shard_0_1"


# --- the checks ---

def scenes(at):
    """What is damaged, and the check that must see it: scene to (good result, check of a copy of it)."""
    found = {}
    for name, case in at.items():
        checks = checks_of(case)
        found.update({f"{check}, {name}": (case["exported" if check == "export" else "run"], run) for check, run in checks.items()})
        whole = {check: (case["whole_exported" if check == "export" else "whole_run"], run) for check, run in checks.items()}
        found.update({f"{check}, whole for {name}": scene for check, scene in whole.items()})
    return found


def checks_of(case):
    family, part = FAMILIES[case["family"]], Part(case["layers"], case["exclude"])
    by = (case["source"], family, case["without_mtp"], case["dequantized"])
    return {
        "torch_dist": lambda copy, report: check_torch_dist.check(copy, case["expected"], report, family.block_modules),
        "ranks": lambda copy, report: check_ranks.check(copy, case["expected"], case["ranks"], family, report, True),
        "export": lambda copy, report: check_export.check(copy, *by, report, part),
    }


# Scenes whose undamaged result is a fault itself: nothing was left out.
FAILING = [f"{check}, whole for {case}" for case in CASES for check in ("torch_dist", "ranks", "export")]


# --- faults that only a part can have ---

def and_a_layer_more(exported):
    """A tensor of a layer that is left out, which the index does not name."""
    shard(lambda tensors, name: tensors.update({"model.layers.2.input_layernorm.weight": torch.ones(96, dtype=torch.bfloat16)}))(exported)


def index_of_the_whole(document):
    """A layer that is left out, which no shard holds."""
    document["weight_map"]["model.layers.2.input_layernorm.weight"] = next(iter(document["weight_map"].values()))


FAULTS_OF_A_CASE = [
    # check, what the report must say, fault, how
    ("torch_dist", "expected tensor absent", "a key missing", delete_entry(EMBEDDING)),
    ("torch_dist", "unexpected tensor", "a key of a layer left out", add_tensor(LEFT_OUT, EMBEDDING)),
    ("torch_dist", "bits differ", "a bit of a weight", flip_weight(EMBEDDING)),
    ("ranks", "Unexpected keys", "a key missing", delete_entry(EMBEDDING)),
    ("ranks", "Missing keys", "a key of a layer left out", add_tensor(LEFT_OUT, EMBEDDING)),
    ("ranks", "Missing keys", "an object of a layer left out", lambda run: set_object(run, OBJECT_LEFT_OUT, [None])),
    ("ranks", "bits differ", "a bit of a weight", flip_weight(EMBEDDING)),
    ("ranks", "load failed", "no common.pt", remove("common.pt")),
    ("export", "tensor absent", "a tensor missing", shard(lambda tensors, name: tensors.pop(name))),
    ("export", "where the index does not look for it", "a tensor of a layer left out", and_a_layer_more),
    ("export", "which does not hold it", "an index that names a layer left out", index(index_of_the_whole)),
    ("export", "bits differ", "a bit of a weight", lambda exported: flip(first_shard(exported), os.path.getsize(first_shard(exported)) - 1)),
    ("export", "total_size", "the total size of another part", index(grow)),
    ("torch_dist, whole for", "unexpected tensor", "the whole model", lambda run: None),
    ("ranks, whole for", "Missing keys", "the whole model", lambda run: None),
    ("export, whole for", "tensor unexpected", "the whole model", lambda exported: None),
]
FAULTS = [
    (f"{check} {case}" if check.endswith(" for") else f"{check}, {case}", *rest) for case in CASES for check, *rest in FAULTS_OF_A_CASE
]


def prepare(at):
    """Nothing is needed."""
