"""What vLLM's worker does with tt-metal's Llama-3.2-Vision on a T3000, for dry runs: build, allocate caches, prefill.

Run it in a tt-metal checkout of October 2025 (docs/dry_run_accuracy.md has the commands and what they reproduce).
"""

import argparse
import math

import numpy as np
import torch
import ttnn
from models.common.llama_models import create_vision_mask
from models.tt_transformers.tt.generator import Generator
from models.tt_transformers.tt.model_config import ModelArgs
from models.tt_transformers.tt.multimodal.llama_vision_model import CrossAttentionTransformer
from PIL import Image

BLOCK, USERS, CONTEXT, LOOKAHEAD = 64, 32, 131072, 9  # of the server's configuration of this model
IMAGE_TOKEN = 128256


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 32650], help="prompts, one after the other")
    parser.add_argument("--cache-tokens", type=int, default=65536, help="of all users together")
    parser.add_argument(
        "--cross-layers", type=int, default=20, help="20 in Meta's configuration, 8 from Hugging Face's"
    )
    return parser.parse_args()


def convert_on_the_host() -> None:
    """TT-NN of then: values were converted before they were sent, and rows that fill no tile were padded."""
    from_torch = ttnn.from_torch

    def convert(tensor, *args, device=None, memory_config=None, **given):
        host = from_torch(tensor, *args, **given)
        return host if device is None else ttnn.to_device(host, device, memory_config=memory_config)

    ttnn.from_torch = convert
    ttnn.tilize = lambda tensor: ttnn.to_layout(tensor, ttnn.TILE_LAYOUT)


def allocate_caches(mesh, args, tokens: int) -> list:
    """The paged caches of every layer, with the blocks that the server adds for its users."""
    blocks = int(math.ceil((tokens + (BLOCK + LOOKAHEAD) * USERS) / BLOCK) * 1.01)
    empty = torch.zeros((blocks, 1, BLOCK, args.head_dim), dtype=torch.bfloat16)
    options = {
        "device": mesh, "mesh_mapper": ttnn.ReplicateTensorToMesh(mesh), "layout": ttnn.TILE_LAYOUT,
        "memory_config": ttnn.DRAM_MEMORY_CONFIG, "dtype": ttnn.bfloat8_b,
    }  # fmt: skip
    layers = args.hf_config.text_config.num_hidden_layers
    return [[ttnn.as_tensor(empty, **options) for _ in "kv"] for _ in range(layers)]


def prefill(generator, args, kv_cache, length: int) -> None:
    """One prompt with an image."""
    tokens = torch.randint(0, 1000, (1, length), dtype=torch.int32)
    tokens[0, 5] = IMAGE_TOKEN
    image = Image.fromarray(np.zeros((512, 512, 3), dtype=np.uint8), "RGB")
    mask = create_vision_mask(tokens[0].tolist(), IMAGE_TOKEN)
    image_tokens = args.vision_max_num_chunks * (-(-args.vision_chunk_ntok // 32) * 32)
    generator.prefill_forward_llama_vision(
        [[image]],
        [mask],
        tokens,
        None,
        [length + CONTEXT - 1],
        [length],
        page_table=torch.zeros((1, CONTEXT // BLOCK), dtype=torch.int32),
        kv_cache=[kv_cache],
        cross_page_table=torch.zeros((1, math.ceil(image_tokens / BLOCK)), dtype=torch.int32),
    )


def main() -> None:
    asked = parse_arguments()
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 8))
    convert_on_the_host()
    args = ModelArgs(mesh, max_batch_size=USERS)
    args.max_seq_len, args.vision_num_cross_attention_layers = CONTEXT, asked.cross_layers
    model = CrossAttentionTransformer(
        mesh,
        state_dict=args.load_state_dict(),
        weight_cache_path=args.weight_cache_path(ttnn.bfloat8_b),
        dtype=ttnn.bfloat8_b,
        configuration=args,
        use_paged_kv_cache=True,
    )
    generator = Generator([model], [args], mesh)
    kv_cache = allocate_caches(mesh, args, asked.cache_tokens)
    for length in asked.lengths:
        prefill(generator, args, kv_cache, length)
    ttnn.close_mesh_device(mesh)


if __name__ == "__main__":
    main()
