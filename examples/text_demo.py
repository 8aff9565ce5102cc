"""A Llama-style decoder, tensor-parallel over 1x8: prompts, then a decode step replayed as a trace, for 32 users.

    python examples/text_demo.py
    pytest examples/text_demo.py -k "performance and batch-32"

Weights are random (the text is gibberish) unless LLAMA_DIR names a folder with a Llama in safetensors. Tokens are bytes,
or tokenizer.json's where that folder has one and `tokenizers` is installed. Watch it with `ttmesh monitor -a` and
TT_ALLOC_TRACKING_ENABLED=1: the coordinator has the highest L1, DRAM and TRACE are equal everywhere.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.progress import track

import ttmesh.ttnn as ttnn
from ttmesh.base.sizes import size_text
from ttmesh.testing.memory_watch import usage

sys.path.insert(0, str(Path(__file__).parent / "models"))
from llama_decoder import HELD, Layer, Sizes, Weights, angles, draw_weights, one_user_per_core, rotation_matrix
from llama_files import read_llama, read_sizes, tokenizer_of

from ttmesh.showcase.model_placement import Placement

console = Console(highlight=False, soft_wrap=True)
CHIPS, TOP = 8, 32  # sampling looks at the 32 likeliest tokens
PROMPTS = ("The mesh of eight chips ", "Once upon a time ", "A tile is ", "To add two tensors, ")


@dataclass
class Run:
    """What was made, and how fast."""

    texts: list[str]
    tokens: torch.Tensor  # [users, new tokens]
    prompt_seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn: from the `top_k` likeliest (at most 32), of those from the likeliest that make up `top_p`."""

    top_k: int = TOP
    top_p: float = 0.9
    temperature: float = 1.0
    seed: int = 0


SAMPLING, GREEDY = Sampling(), Sampling(top_k=1)


class Generator:
    """The model with the tensors that a captured step reads and writes at fixed addresses: tokens, positions, caches."""

    def __init__(
        self, at: Placement, sizes: Sizes, top: Weights, layers: list[Weights], sampling: Sampling = SAMPLING
    ) -> None:
        self.at, self.sizes, self.mesh = at, sizes, at.mesh
        self.layers = [Layer(at, w, sizes) for w in layers]
        self.norm, self.head = at.weight(top["norm"], dtype=ttnn.bfloat16), at.weight(top["head"], 1)
        self.matrix = at.weight(rotation_matrix(), dtype=ttnn.bfloat16)
        repeated = at.weight(rotation_matrix().repeat(1, 1, sizes.users, 1), dtype=ttnn.bfloat16)
        self.step_matrix = ttnn.to_memory_config(repeated, one_user_per_core(at.mesh, sizes.users, ttnn.TILE_SIZE))
        self.tables = [self.rows(table, ttnn.bfloat16) for table in (top["embedding"], *angles(sizes))]
        users = torch.ones(sizes.users)
        self.k = self.rows(users * sampling.top_k, ttnn.uint32)
        self.p = self.rows(users * sampling.top_p, ttnn.bfloat16)
        self.sharpness = self.rows(users / sampling.temperature, ttnn.bfloat16)
        self.tokens = self.rows(torch.zeros(1, sizes.users), ttnn.uint32)
        self.row = self.rows(torch.zeros(1, sizes.users), ttnn.uint32)  # positions, as a lookup wants them
        self.position = self.rows(torch.zeros(sizes.users), ttnn.int32)  # and as caches want them

    def rows(self, values: torch.Tensor, dtype: ttnn.DataType, *, device: bool = True) -> ttnn.Tensor:
        """Row-major on every chip."""
        values = values.int() if dtype in (ttnn.uint32, ttnn.int32) else values
        mapper = ttnn.ReplicateTensorToMesh(self.mesh)
        return ttnn.from_torch(values, dtype=dtype, device=self.mesh if device else None, mesh_mapper=mapper)

    def logits(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[..., vocabulary]: each chip computes a shard, then all chips get the full logits."""
        shard = ttnn.linear(ttnn.rms_norm(x, epsilon=self.sizes.epsilon, weight=self.norm), self.head)
        return ttnn.all_gather(shard, 3, cluster_axis=1)

    def sample(self, logits: ttnn.Tensor) -> None:
        """Draw a token per user from [1, 1, users, vocabulary], on the device, to where the next step reads."""
        values, places = ttnn.topk(logits, TOP)
        places = ttnn.to_layout(ttnn.typecast(places, ttnn.uint32), ttnn.ROW_MAJOR_LAYOUT)
        drawn = ttnn.sampling(values, places, self.k, self.p, self.sharpness)
        ttnn.copy(ttnn.reshape(drawn, (1, self.sizes.users)), self.tokens)

    def prompt(self, tokens: torch.Tensor) -> None:
        """Fill the caches with prompts of one length and draw the first new tokens."""
        users, count = tokens.shape
        embedding, cos, sin = self.tables
        x = ttnn.embedding(self.rows(tokens, ttnn.uint32), embedding, layout=ttnn.TILE_LAYOUT)
        x = ttnn.reshape(x, (users, 1, count, self.sizes.width))
        at = self.rows(torch.arange(count).reshape(1, -1), ttnn.uint32)
        rope = [ttnn.embedding(at, table, layout=ttnn.TILE_LAYOUT) for table in (cos, sin)]
        cos, sin = (ttnn.reshape(table, (1, 1, count, self.sizes.size)) for table in rope)
        for layer in self.layers:
            x = layer.prompt(x, {"cos": cos, "sin": sin, "matrix": self.matrix})
        last = ttnn.reshape(x[:, :, count - 1 : count], (1, 1, users, self.sizes.width))
        self.sample(self.logits(last))
        for values, tensor in ((torch.full((1, users), count), self.row), (torch.full((users,), count), self.position)):
            ttnn.copy_host_to_device_tensor(self.rows(values, tensor.dtype, device=False), tensor)

    def step(self) -> None:
        """One more token per user; everything it needs and gives is on the device."""
        users, (embedding, *tables) = self.sizes.users, self.tables
        x = ttnn.embedding(self.tokens, embedding, layout=ttnn.TILE_LAYOUT)
        x = ttnn.reshape(x, (1, 1, users, self.sizes.width))
        rope = [ttnn.embedding(self.row, table, layout=ttnn.TILE_LAYOUT) for table in tables]
        shards = one_user_per_core(self.mesh, users, self.sizes.size)
        rope = [ttnn.reshape(table, (1, users, 1, self.sizes.size)) for table in rope]
        cos, sin = (ttnn.to_memory_config(table, shards) for table in rope)
        for layer in self.layers:
            x = layer.token(x, {"cos": cos, "sin": sin, "matrix": self.step_matrix}, self.position, users)
        self.sample(self.logits(x))
        ttnn.plus_one(self.position)
        ttnn.plus_one(self.row)


def show_memory(mesh: ttnn.MeshDevice) -> None:
    """What every device holds: as the monitor shows it."""
    used = {}
    for kind in (ttnn.BufferType.DRAM, ttnn.BufferType.TRACE):
        view = ttnn.get_memory_view(mesh, kind)
        used[kind] = size_text(view.num_banks * view.total_bytes_allocated_per_bank)
    seen = usage("text demo", mesh)
    for device in sorted(seen.l1_bytes):
        mark = "  ← coordinator" if device == seen.coordinator else ""
        console.print(
            f"Device {device}: DRAM {used[ttnn.BufferType.DRAM]}, TRACE {used[ttnn.BufferType.TRACE]}, "
            f"L1 {size_text(seen.l1_bytes[device])}{mark}"
        )


def generate(
    users: int,
    steps: int,
    *,
    traced: bool = True,
    folder: Path | None = None,
    sampling: Sampling = SAMPLING,
    weights: ttnn.DataType = ttnn.bfloat8_b,
) -> Run:
    """Prompts for so many users, then so many tokens for each."""
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D_RING)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, CHIPS), num_command_queues=2, trace_region_size=8_000_000)
    ttnn.manual_seed(sampling.seed, device=mesh)
    tokenizer = tokenizer_of(folder)
    prompts = [tokenizer.encode(PROMPTS[i % len(PROMPTS)]) for i in range(users)]
    count = 32
    prompts = [([0] * count + prompt)[-count:] for prompt in prompts]  # one length: zeros in front
    length = -(-(count + steps + 2) // 32) * 32
    if folder is None:
        sizes = Sizes(layers=2, users=users, length=length, kv_heads=CHIPS, vocabulary=256)
        top, layers = draw_weights(torch.Generator().manual_seed(0), sizes)
    else:
        sizes = read_sizes(folder, users, length, CHIPS)
        top, layers = read_llama(folder, sizes)
    model = Generator(Placement("text demo", mesh, None, 1, weights), sizes, top, layers, sampling)

    start = time.perf_counter()
    model.prompt(torch.tensor(prompts))
    ttnn.synchronize_device(mesh)
    prompt_seconds = time.perf_counter() - start
    made = [ttnn.from_device(model.tokens)]
    model.step()  # compiles
    made.append(ttnn.from_device(model.tokens))
    if traced:
        console.print("Capturing the decode trace")
        trace = ttnn.begin_trace_capture(mesh, cq_id=0)
        model.step()
        ttnn.end_trace_capture(mesh, trace, cq_id=0)
    start = time.perf_counter()
    for _ in track(range(steps), description=f"{users} users", console=console):
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=False) if traced else model.step()
        # Tokens leave on the second queue, once the first has made them and before it makes the next.
        ttnn.wait_for_event(1, ttnn.record_event(mesh, 0))
        made.append(ttnn.from_device(model.tokens, blocking=False, queue_id=1))
        ttnn.wait_for_event(0, ttnn.record_event(mesh, 1))
    ttnn.synchronize_device(mesh)
    seconds = time.perf_counter() - start
    tokens = torch.stack([ttnn.to_torch(ttnn.get_device_tensors(step)[0]).flatten() for step in made], -1)
    show_memory(mesh)
    if traced:
        ttnn.release_trace(mesh, trace)
    del model
    HELD.clear()
    ttnn.close_mesh_device(mesh)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
    texts = [tokenizer.decode(row) for row in tokens.tolist()]
    return Run(texts, tokens, prompt_seconds, steps * users / seconds)


CASES = {"performance-batch-1": (1, 32), "performance-batch-32": (32, 32), "short-batch-32": (32, 4)}


@pytest.mark.parametrize(("users", "steps"), CASES.values(), ids=CASES)
def test_demo_text(users: int, steps: int) -> None:
    folder = os.environ.get("LLAMA_DIR")
    run = generate(users, steps, folder=None if folder is None else Path(folder))

    assert run.tokens.shape == (users, steps + 2)
    report(run)


def report(run: Run) -> None:
    """Some of the text, and the speed."""
    for i, text in enumerate(run.texts[:2]):
        console.print(f"user {i}: {PROMPTS[i % len(PROMPTS)]}{text!r}", markup=False)
    users = len(run.texts)
    console.print(
        f"prompts of {users} users: {run.prompt_seconds:.2f} s; decode: {run.tokens_per_second:.0f} tokens/s "
        f"({run.tokens_per_second / users:.1f} per user)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=32, help="1 to 32")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per user, besides the first two")
    parser.add_argument("--top-k", type=int, default=TOP, help="1 is greedy")
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)  # small tensors; see ttmesh/showcase/training_curves.py
    folder = os.environ.get("LLAMA_DIR")
    sampling = Sampling(given.top_k, given.top_p, given.temperature, given.seed)
    with torch.no_grad():
        report(generate(given.users, given.tokens, folder=None if folder is None else Path(folder), sampling=sampling))


if __name__ == "__main__":
    main()
