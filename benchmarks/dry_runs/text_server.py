"""What vLLM's worker does with a model of tt_transformers, for dry runs: build, allocate caches, warm up, prefill.

Run it in a tt-metal checkout (docs/dry_run_accuracy.md has the commands and what they are compared with).
"""

import argparse
import inspect
import math

import torch
import ttnn
from models.tt_transformers.tt.generator import Generator
from models.tt_transformers.tt.model import Transformer
from models.tt_transformers.tt.model_config import DecodersPrecision, ModelArgs

BLOCK, USERS = 64, 32
SAMPLING = ("can_sample_on_device", "non_greedy_decoding_on_device")  # the second until May 2026


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--context", type=int, default=65536, help="tokens that the cache holds")
    parser.add_argument("--sampling", choices=("chips", "host"), default="chips")
    parser.add_argument(
        "--batches",
        nargs="*",
        default=[],
        metavar="USERSxTOKENS",
        help="prompts that arrive together, after the warm-up",
    )
    return parser.parse_args()


def build(mesh: ttnn.MeshDevice, context: int) -> tuple[Generator, ModelArgs]:
    """The model as the server builds it: caches of its own, the precisions of `performance`."""
    args = ModelArgs(
        mesh,
        instruct=True,
        max_batch_size=USERS,
        optimizations=lambda model: DecodersPrecision.performance(model.n_layers, model.model_name),
        max_seq_len=context,
    )
    model = Transformer(
        args=args,
        mesh_device=mesh,
        dtype=ttnn.bfloat8_b,
        state_dict=args.load_state_dict(),
        weight_cache_path=args.weight_cache_path(ttnn.bfloat8_b),
        use_paged_kv_cache=True,
    )
    return Generator([model], [args], mesh), args


def allocate_caches(mesh: ttnn.MeshDevice, args: ModelArgs, tokens: int) -> list:
    """The paged caches of every layer."""
    heads = max(args.n_kv_heads // mesh.get_num_devices(), 1)
    empty = torch.zeros((math.ceil(tokens / BLOCK) + USERS, heads, BLOCK, args.head_dim), dtype=torch.bfloat16)
    options = {
        "device": mesh, "mesh_mapper": ttnn.ReplicateTensorToMesh(mesh), "layout": ttnn.TILE_LAYOUT,
        "memory_config": ttnn.DRAM_MEMORY_CONFIG, "dtype": ttnn.bfloat8_b,
    }  # fmt: skip
    return [[ttnn.as_tensor(empty, **options) for _ in "kv"] for _ in range(args.n_layers)]


def take_narrow_indices() -> None:
    """TT-NN until August 2026: topk took indices narrower than its input, which samplers of then give it."""
    topk = ttnn.topk

    def take(tensor, *given, indices_tensor=None, **options):
        fits = indices_tensor is not None and indices_tensor.shape == tensor.shape
        return topk(tensor, *given, indices_tensor=indices_tensor if fits else None, **options)

    ttnn.topk = take


def report(mesh: ttnn.MeshDevice, what: str) -> None:
    view = ttnn.get_memory_view(mesh, ttnn.BufferType.TRACE)
    print(f"{what}: traces of {view.total_bytes_allocated_per_bank * view.num_banks:,} B")


def main() -> None:
    asked = parse_arguments()
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, ttnn.get_num_devices()), trace_region_size=1 << 30)
    take_narrow_indices()
    generator, args = build(mesh, asked.context)
    kv_cache = [allocate_caches(mesh, args, asked.context)]
    blocks = asked.context // BLOCK
    asks = inspect.signature(generator.warmup_model_prefill).parameters
    sampling = {name: asked.sampling == "chips" for name in SAMPLING if name in asks}
    generator.warmup_model_prefill(kv_cache, enable_trace=True, **sampling)
    report(mesh, "prefill warmed up")
    generator.warmup_model_decode(kv_cache, enable_trace=True, max_batch_size=USERS, num_blocks=blocks, **sampling)
    report(mesh, "decode warmed up")
    for batch in asked.batches:
        users, tokens = map(int, batch.split("x"))
        generator.prefill_forward_text(
            torch.zeros((users, tokens), dtype=torch.long),
            page_table=torch.zeros((users, blocks), dtype=torch.int32),
            kv_cache=kv_cache,
            prompt_lens=torch.tensor([tokens] * users),
            empty_slots=list(range(users)),
            enable_trace=True,
        )
        report(mesh, f"prompts of {users} users, {tokens} tokens each")
    ttnn.close_mesh_device(mesh)


if __name__ == "__main__":
    main()
