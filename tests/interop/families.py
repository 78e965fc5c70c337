"""What the checks must know of each model family: the data that they are given, so that they themselves know no model."""
import dataclasses
from collections.abc import Callable

import expected, expected_qwen3


@dataclasses.dataclass(frozen=True)
class Padding:
    """A vocabulary that Megatron may be asked to make longer."""

    # The keys whose first axis it is.
    keys: tuple
    # Rows in the file, from those of the model and the tensor parallel size.
    size: Callable
    # What run_config.yaml must say of it.
    divisible_by: int


# Fields in the order of a mesh.
PARALLEL = """
    tensor_model_parallel_size pipeline_model_parallel_size expert_model_parallel_size expert_tensor_parallel_size
""".split()


@dataclasses.dataclass(frozen=True)
class Family:
    # From a Hugging Face directory, and whether the prediction layers are left out: the tensors that an export of it holds.
    plain: Callable
    # From a key, a shape and a mesh: the chunks that Megatron-Core writes, as (offsets, sizes).
    boxes: Callable
    # Provider fields that the model's tensors follow from, and its forward pass: present, and equal to the real ones.
    same_value: list
    # Fields whose type may differ, each with its reason.
    other_type: dict
    # From a mesh: the value of each field of PARALLEL.
    parallel: Callable
    # From the model sections of ours and of the real one, and the mesh if it is not that of the real one: what is wrong with the layers of the
    # stages.
    stages: Callable
    # Provider fields that `stages` looks at.
    stage_fields: list
    padding: Padding | None
    # Modules of a layer that have an extra state, where Megatron-Core's transformer block names the layers: stacked or one by one, as the
    # checkpoint's content metadata says. None where the names are the same for all.
    block_modules: list | None


# --- GLM-5 ---

def pattern(ours, theirs, mesh):
    """The stages are marked in the layer pattern."""
    if "hybrid_layer_pattern" not in ours:
        yield "model.hybrid_layer_pattern is absent"
    found, wanted = ours.get("hybrid_layer_pattern", ""), theirs["hybrid_layer_pattern"]
    if mesh:
        if found.count("|") != mesh[1] - 1:
            yield f"model.hybrid_layer_pattern is {found!r}, expected {mesh[1]} stages"
        found, wanted = found.replace("|", ""), wanted.replace("|", "")
    if found != wanted:
        yield f"model.hybrid_layer_pattern is {found!r}, expected {wanted!r}"


GLM5 = Family(
    plain=expected.plain,
    boxes=lambda key, shape, mesh: expected.boxes(key, shape, mesh[0], mesh[3]),
    same_value="""
        activation_func add_bias_linear add_qkv_bias dsa_indexer_head_dim dsa_indexer_k_norm_epsilon dsa_indexer_n_heads
        dsa_indexer_rope_interleaved dsa_indexer_skip_topk_offset dsa_indexer_topk dsa_indexer_topk_freq
        experimental_attention_variant ffn_hidden_size gated_linear_unit hidden_size kv_lora_rank
        layernorm_epsilon moe_ffn_hidden_size moe_router_dtype moe_router_enable_expert_bias moe_router_group_topk
        moe_router_num_groups moe_router_pre_softmax moe_router_score_function moe_router_topk moe_router_topk_scaling_factor
        moe_shared_expert_intermediate_size mscale mscale_all_dim mtp_num_layers multi_latent_attention normalization
        num_attention_heads num_layers num_moe_experts num_query_groups params_dtype position_embedding_type q_lora_rank qk_head_dim
        qk_layernorm qk_pos_emb_head_dim rotary_base rotary_percent rotary_scaling_factor seq_length
        share_embeddings_and_output_weights should_pad_vocab v_head_dim vocab_size
    """.split(),
    other_type={"moe_layer_freq": "one flag for each layer here; the provider behind the fixture left the default, one number"},
    parallel=lambda mesh: mesh,
    stages=pattern,
    stage_fields=["hybrid_layer_pattern"],
    padding=Padding(expected.PADDED, expected.padded_size, expected.DIVISIBLE_BY),
    block_modules=None,
)


# --- Qwen3 ---

UNEVEN = """
    account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split num_layers_in_first_pipeline_stage
    num_layers_in_last_pipeline_stage pipeline_model_parallel_layout
""".split()


def even(ours, theirs, mesh):
    """Stages of as many layers each: nothing may say otherwise."""
    for field in UNEVEN:
        if field in ours and ours[field] != theirs[field]:
            yield f"model.{field} is {ours[field]!r}, expected {theirs[field]!r}"
    stages = (mesh or [None, theirs["pipeline_model_parallel_size"]])[1]
    if ours.get("num_layers", 0) % stages:
        yield f"model.num_layers is {ours.get('num_layers')}, which {stages} stages do not share evenly"


QWEN3 = Family(
    # Nothing is narrowed, widened or left out.
    plain=lambda source, without_mtp=False: expected.stored(source),
    boxes=lambda key, shape, mesh: expected_qwen3.boxes(key, shape, mesh[0]),
    same_value="""
        _target_ activation_func add_bias_linear add_qkv_bias ffn_hidden_size gated_linear_unit hetereogenous_dist_checkpoint hidden_size
        kv_channels layernorm_epsilon layernorm_zero_centered_gamma make_vocab_size_divisible_by normalization num_attention_heads
        num_layers num_query_groups params_dtype position_embedding_type qk_layernorm rotary_base rotary_percent seq_length
        share_embeddings_and_output_weights should_pad_vocab vocab_size
    """.split(),
    other_type={},
    # There are no experts, so no mesh says how their tensors are divided: Megatron then fills in the tensor parallel size.
    parallel=lambda mesh: [*mesh[:3], mesh[0]],
    stages=even,
    stage_fields=UNEVEN,
    padding=None,
    block_modules=expected_qwen3.MODULES,
)

FAMILIES = {"glm5": GLM5, "qwen3": QWEN3}
