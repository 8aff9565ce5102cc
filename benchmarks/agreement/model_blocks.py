"""Blocks of models as lines of a program: attention, MLP, experts, convolutions, embeddings, caches, moves between memories.

Shapes fit each other as a model's do; memory configs, program configs, precisions and the order of moves are drawn.
"""

# ruff: noqa: E501 (a call is one line of text)
from __future__ import annotations

import random
from collections.abc import Callable

FORMATS = ("bf16", "bf16", "bf16", "bf8", "f32")
WEIGHTS = ("bf16", "bf8", "bf8", "bf4")
COMPUTE = (
    "ttnn.init_device_compute_kernel_config(dev.arch(), math_fidelity=ttnn.MathFidelity.{fidelity}, "
    "math_approx_mode={approx}, fp32_dest_acc_en={fp32}, packer_l1_acc={packer})"
)


class Program:
    """The lines of one program; `tensor` adds a line that names its result."""

    def __init__(self, seed: str, grid: tuple[int, int]) -> None:
        self.random, self.grid = random.Random(seed), grid
        self.lines: list[str] = []
        self.count = 0

    def tensor(self, expression: str) -> str:
        """A line `tN = expression`; the name."""
        name = f"t{self.count}"
        self.count += 1
        self.lines.append(f"{name} = {expression}")
        return name

    def pick(self, *choices):
        """One of them."""
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        """True as often as this."""
        return self.random.random() < probability

    def free(self, *names: str) -> None:
        """Frees tensors, sometimes."""
        for name in names:
            if self.chance(0.6):
                self.lines.append(f"ttnn.deallocate({name})")

    def memory(self) -> str:
        """A memory_config keyword, or nothing."""
        return self.pick("", ", memory_config=DRAM", ", memory_config=L1")

    def compute(self) -> str:
        """A compute_kernel_config keyword, or nothing."""
        if self.chance(0.5):
            return ""
        config = COMPUTE.format(
            fidelity=self.pick("LoFi", "HiFi2", "HiFi4"),
            approx=self.chance(0.5),
            fp32=self.chance(0.5),
            packer=self.chance(0.5),
        )
        return f", compute_kernel_config={config}"

    def made(self, shape: tuple[int, ...], dtype: str = "bf16", layout: str = "TILE", memory: str = "DRAM") -> str:
        """A tensor from the host."""
        return self.tensor(f"mk({shape}, {dtype!r}, {layout}, {memory})")

    def weight(self, k: int, n: int) -> str:
        """A weight of a linear layer."""
        return self.made((k, n), self.pick(*WEIGHTS))

    def shards(self, kind: str, height: int, width: int) -> str:
        """Shards of this tensor over cores that divide it evenly."""
        x, y = self.grid
        down = max(n for n in range(1, y + 1) if height % (32 * n) == 0)
        across = max(n for n in range(1, x + 1) if width % (32 * n) == 0)
        if kind == "b":
            return f"shards('b', ({height // down}, {width // across}), {across}, {down})"
        if kind == "h":
            cores = max(n for n in range(1, x + 1) if height % (32 * n) == 0)
            return f"shards('h', ({height // cores}, {width}), {cores}, 1)"
        return f"shards('w', ({height}, {width // across}), {across}, 1)"

    def moved(self, x: str, height: int, width: int) -> str:
        """The tensor in some memory."""
        to = self.pick("stay", "DRAM", "L1", "h", "w", "b")
        if to == "stay":
            return x
        memory = to if to in ("DRAM", "L1") else self.shards(to, height, width)
        form = self.pick("ttnn.to_memory_config({x}, {m})", "ttnn.to_memory_config({x}, {m})")
        if to in ("h", "w", "b") and self.chance(0.3):
            form = "ttnn.interleaved_to_sharded({x}, {m})"
        return self.tensor(form.format(x=x, m=memory))

    def norm(self, x: str, rows: int, width: int) -> str:
        """A norm over the last dim."""
        rms = self.chance(0.6)
        name = "rms_norm" if rms else "layer_norm"
        gamma = self.made((1, 1, width // 32, 32), "bf16", "RM") if self.chance(0.5) else self.made((1, width))
        bias = f", bias={self.made((1, width))}" if not rms and self.chance(0.6) else ""
        if self.chance(0.3) and rows == 32:
            cores = max(n for n in range(1, self.grid[0] + 1) if width % (32 * n) == 0)
            memory = f"shards('w', (32, {width // cores}), {cores}, 1)"
            x = self.tensor(f"ttnn.to_memory_config({x}, {memory})")
            block = width // cores // 32
            config = (
                f"ttnn.LayerNormShardedMultiCoreProgramConfig(compute_with_storage_grid_size=({cores}, 1), "
                f"subblock_w={self.pick(1, block) if block <= 4 else 1}, block_h=1, block_w={block}, inplace={self.chance(0.3)})"
            )
            y = self.tensor(
                f"ttnn.{name}({x}, weight={gamma}{bias}, epsilon=1e-05, program_config={config}, "
                f"memory_config={memory}{self.compute()})"
            )
            if self.chance(0.7):
                return self.tensor(f"ttnn.sharded_to_interleaved({y}, {self.pick('DRAM', 'L1')})")
            return y
        return self.tensor(f"ttnn.{name}({x}, weight={gamma}{bias}, epsilon=1e-05{self.memory()}{self.compute()})")

    def linear(self, x: str, rows: int, k: int, n: int, activation: bool = False) -> str:
        """A linear layer of one of the usual forms."""
        w = self.weight(k, n)
        extra = f", bias={self.made((1, n), self.pick('bf16', 'bf8'))}" if self.chance(0.3) else ""
        if activation and self.chance(0.6):
            extra += f", activation={self.pick('silu', 'gelu', 'relu')!r}"
        extra += f", dtype=ttnn.{self.pick('bfloat16', 'bfloat8_b')}" if self.chance(0.4) else ""
        form = self.pick("plain", "plain", "grid", "1d", "2d", "sharded")
        grid_x, grid_y = self.grid
        tiles_m, tiles_k, tiles_n = rows // 32, k // 32, n // 32
        if form == "grid":
            extra += f", core_grid=ttnn.CoreGrid(y={self.pick(grid_y, 4)}, x={grid_x})"
        elif form in ("1d", "sharded") and rows <= 128:
            x_cores = max(c for c in range(1, grid_x + 1) if tiles_n % c == 0 and tiles_k % c == 0)
            per_core_n = tiles_n // x_cores
            block = max(b for b in (1, 2, 4) if (tiles_k // x_cores) % b == 0)
            subblock = max(b for b in (1, 2, 4) if per_core_n % b == 0)
            extra += (
                ", program_config=ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(compute_with_storage_grid_size="
                f"({x_cores}, 1), in0_block_w={block}, out_subblock_h=1, out_subblock_w={subblock}, per_core_M={tiles_m}, "
                f"per_core_N={per_core_n}, fuse_batch=True, fused_activation=None, mcast_in0=True)"
            )
            if form == "sharded":
                x = self.tensor(f"ttnn.to_memory_config({x}, shards('w', ({rows}, {k // x_cores}), {x_cores}, 1))")
                extra += ", memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG" if self.chance(0.7) else ""
                return self.tensor(f"ttnn.linear({x}, {w}{extra}{self.compute()})")
        elif form == "2d" and rows >= 64:
            y_cores = max(c for c in range(1, grid_y + 1) if tiles_m % c == 0)
            x_cores = max(c for c in range(1, grid_x + 1) if tiles_n % c == 0)
            extra += (
                ", program_config=ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(compute_with_storage_grid_size="
                f"({x_cores}, {y_cores}), in0_block_w={self.pick(1, 2)}, out_subblock_h=1, out_subblock_w=1, "
                f"per_core_M={tiles_m // y_cores}, per_core_N={tiles_n // x_cores}, transpose_mcast=False, "
                "fused_activation=None)"
            )
        return self.tensor(f"ttnn.{self.pick('linear', 'linear')}({x}, {w}{extra}{self.memory()}{self.compute()})")

    def residual(self, x: str, y: str) -> str:
        """A sum, in place or not."""
        if self.chance(0.3):
            return self.tensor(self.pick(f"ttnn.add_({x}, {y})", f"ttnn.add({x}, {y}, output_tensor={x})"))
        dtype = f", dtype=ttnn.{self.pick('bfloat16', 'bfloat8_b')}" if self.chance(0.3) else ""
        return self.tensor(self.pick(f"ttnn.add({x}, {y}{self.memory()}{dtype})", f"{x} + {y}"))


def prefill(p: Program) -> None:
    """Attention over a prompt, with rotary embeddings and a cache."""
    s, heads, groups, d = p.pick(32, 64, 128, 256), p.pick(4, 8), p.pick(1, 2, 4), p.pick(32, 64)
    width = heads * d
    x = p.made((1, 1, s, width), p.pick("bf16", "bf8"))
    h = p.norm(x, s, width)
    qkv = p.linear(h, s, width, (heads + 2 * groups) * d)
    p.free(h)
    out = p.tensor(
        f"ttnn.experimental.nlp_create_qkv_heads({qkv}, num_heads={heads}, num_kv_heads={groups}, "
        f"transpose_k_heads=False{p.memory()})"
    )
    q, k, v = (p.tensor(f"{out}[{i}]") for i in range(3))
    if p.chance(0.7):
        cos, sin = p.made((1, 1, s, d)), p.made((1, 1, s, d))
        if p.chance(0.5):
            t = p.made((1, 1, 32, 32))
            q, k = (
                p.tensor(f"ttnn.experimental.rotary_embedding_llama({n}, {cos}, {sin}, {t}, is_decode_mode=False)")
                for n in (q, k)
            )
        else:
            q, k = (p.tensor(f"ttnn.experimental.rotary_embedding({n}, {cos}, {sin})") for n in (q, k))
    if p.chance(0.6):
        dtype = p.pick("bf16", "bf8")
        caches = [p.made((2, groups, 256, d), dtype) for _ in range(2)]
        for cache, value in zip(caches, (k, v), strict=True):
            if dtype == "bf8":
                value = p.tensor(f"ttnn.typecast({value}, ttnn.bfloat8_b)")
            p.lines.append(f"ttnn.fill_cache({cache}, {value}, {p.pick(0, 1)})")
    config = ""
    if p.chance(0.5):
        chunk = p.pick(32, 64)
        config = (
            f", program_config=ttnn.SDPAProgramConfig(compute_with_storage_grid_size={p.grid}, q_chunk_size={chunk}, "
            f"k_chunk_size={chunk}, exp_approx_mode={p.chance(0.5)})"
        )
    a = p.tensor(
        f"ttnn.transformer.scaled_dot_product_attention({q}, {k}, {v}, is_causal=True, scale={d**-0.5}{config}{p.compute()})"
    )
    p.free(q, k, v)
    c = p.tensor(f"ttnn.experimental.nlp_concat_heads({a}{p.memory()})")
    o = p.linear(c, s, width, width)
    p.residual(x, o)


def bert(p: Program) -> None:
    """An encoder's attention."""
    b, s, heads, d = p.pick(1, 2, 8), p.pick(32, 64, 128), p.pick(2, 4, 8), p.pick(32, 64)
    width = heads * d
    x = p.made((b, s, width))
    w, bias = p.made((width, 3 * width), p.pick(*WEIGHTS)), p.made((1, 3 * width))
    qkv = p.tensor(f"ttnn.linear({x}, {w}, bias={bias}{p.memory()}, dtype=ttnn.{p.pick('bfloat16', 'bfloat8_b')})")
    out = p.tensor(f"ttnn.transformer.split_query_key_value_and_split_heads({qkv}, num_heads={heads}{p.memory()})")
    p.free(qkv)
    q, k, v = (p.tensor(f"{out}[{i}]") for i in range(3))
    scores = p.tensor(f"ttnn.matmul({q}, {k}{p.memory()})")
    mask = p.made((b, 1, 1, s))
    if p.chance(0.5):
        form = p.pick("attention_softmax_", "attention_softmax")
        mask = f"{mask}" if p.chance(0.7) else "None"
        probs = p.tensor(f"ttnn.transformer.{form}({scores}, attention_mask={mask}, head_size={d})")
    else:
        scaled = p.tensor(p.pick(f"{scores} * {d**-0.5}", f"ttnn.multiply_({scores}, {d**-0.5})"))
        if p.chance(0.5):
            scaled = p.tensor(f"ttnn.add({scaled}, {mask})")
        probs = p.tensor(f"ttnn.softmax({scaled}, dim=-1{p.pick('', ', numeric_stable=True')}{p.memory()})")
    context = p.tensor(f"ttnn.matmul({probs}, {v}{p.memory()})")
    merged = p.tensor(f"ttnn.transformer.concatenate_heads({context}{p.memory()})")
    w2 = p.weight(width, width)
    o = p.tensor(f"ttnn.linear({merged}, {w2}{p.memory()}{p.compute()})")
    y = p.residual(x, o)
    gamma, beta = p.made((width,)), p.made((width,))
    form = p.pick(
        "ttnn.layer_norm({y}, weight={g}, bias={b})",
        "ttnn.layer_norm({x}, residual_input_tensor={o}, weight={g}, bias={b})",
    )
    n = p.tensor(form.format(x=x, o=o, y=y, g=gamma, b=beta))
    first = p.tensor(f"{n}[:, 0:1, :]")
    pooled = p.tensor(f"ttnn.linear({first}, {p.weight(width, width)}, activation='tanh')")
    p.tensor(f"ttnn.to_layout({pooled}, RM)")


def decode(p: Program) -> None:
    """One token of 8 or 32 users: heads on cores, caches, attention of one query."""
    users, heads, groups, d, length = (
        p.pick(8, 32),
        p.pick(8, 16, 32),
        p.pick(1, 4, 8),
        p.pick(64, 128),
        p.pick(64, 128),
    )
    width = heads * d if heads * d <= 2048 else 2048
    x = p.made((1, 1, 32, width), "bf16", "TILE", p.pick("DRAM", "L1"))
    h = p.norm(x, 32, width)
    qkv = p.linear(h, 32, width, (heads + 2 * groups) * d)
    qkv = p.tensor(f"ttnn.to_memory_config({qkv}, {p.pick('L1', 'DRAM')})") if p.chance(0.7) else qkv
    if users == 8:
        qkv = p.tensor(f"ttnn.slice({qkv}, [0, 0, 0, 0], [1, 1, 8, {(heads + 2 * groups) * d}])")
    out = p.tensor(
        f"ttnn.experimental.nlp_create_qkv_heads_decode({qkv}, num_heads={heads}, num_kv_heads={groups}, "
        "memory_config=ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG)"
    )
    q, k, v = (p.tensor(f"{out}[{i}]") for i in range(3))
    x_cores = p.grid[0]
    if p.chance(0.6) and users % x_cores == 0:
        rows = users // x_cores
        rope = f"shards('h', (32, {d}), {x_cores}, {rows})"
        cos, sin = (p.tensor(f"mk((1, {users}, 1, {d}), 'bf16', TILE, {rope})") for _ in range(2))
        t = p.tensor(f"mk((1, 1, {32 * users}, 32), 'bf16', TILE, shards('h', (32, 32), {x_cores}, {rows}))")
        q, k = (
            p.tensor(f"ttnn.experimental.rotary_embedding_llama({n}, {cos}, {sin}, {t}, is_decode_mode=True)")
            for n in (q, k)
        )
    dtype = p.pick("bf16", "bf8")
    paged = p.chance(0.5)
    positions = p.made((users,), "i32", "RM")
    table = p.made((users, length // 32), "i32", "RM") if paged else None
    shape = (users * length // 32, groups, 32, d) if paged else (users, groups, length, d)
    caches = [p.made(shape, dtype) for _ in range(2)]
    page = f", page_table={table}" if paged else ""
    for cache, value in zip(caches, (k, v), strict=True):
        p.lines.append(f"ttnn.experimental.paged_update_cache({cache}, {value}, update_idxs_tensor={positions}{page})")
    page = f", page_table_tensor={table}" if paged else ""
    name = "paged_scaled_dot_product_attention_decode" if paged else "scaled_dot_product_attention_decode"
    if p.chance(0.4):
        page += (
            f", program_config=ttnn.SDPAProgramConfig(compute_with_storage_grid_size={p.grid}, q_chunk_size=0, "
            f"k_chunk_size={p.pick(0, 32, 64)}, exp_approx_mode=False)"
        )
    q = p.tensor(f"ttnn.to_memory_config({q}, DRAM)") if p.chance(0.3) else q
    a = p.tensor(
        f"ttnn.transformer.{name}({q}, {caches[0]}, {caches[1]}, cur_pos_tensor={positions}, scale={d**-0.5}"
        f"{page}{p.memory()}{p.compute()})"
    )
    x_users, y_users = (x_cores, users // x_cores) if users % x_cores == 0 else (users, 1)
    a = p.tensor(f"ttnn.to_memory_config({a}, shards('h', ({(heads + 31) // 32 * 32}, {d}), {x_users}, {y_users}))")
    c = p.tensor(f"ttnn.experimental.nlp_concat_heads_decode({a}, num_heads={heads})")
    c = p.tensor(f"ttnn.to_memory_config({c}, {p.pick('DRAM', 'L1')})") if p.chance(0.8) else c
    o = p.linear(c, 32, heads * d, width)
    o = p.tensor(f"ttnn.to_memory_config({o}, DRAM)") if p.chance(0.5) else o
    p.residual(x, o)


def mlp(p: Program) -> None:
    """A gated MLP."""
    rows, width = p.pick(32, 32, 64, 128, 256), p.pick(128, 256, 512, 768)
    hidden = width * p.pick(2, 4)
    x = p.made(
        (1, p.pick(1, 1, 2), rows, width) if p.chance(0.7) else (p.pick(1, 4), rows, width), p.pick("bf16", "bf8")
    )
    h = p.norm(x, rows, width)
    h = p.moved(h, rows, width) if p.chance(0.3) else h
    gate, up = p.linear(h, rows, width, hidden, True), p.linear(h, rows, width, hidden)
    p.free(h)
    form = p.pick(
        f"ttnn.mul({gate}, {up}{p.memory()})",
        f"ttnn.mul({gate}, {up}, input_tensor_a_activations=[ttnn.UnaryOpType.SILU]{p.memory()})",
        f"ttnn.multiply({gate}, {up}, input_tensor_a_activations=[ttnn.UnaryOpType.SILU], dtype=ttnn.bfloat8_b)",
        f"ttnn.silu({gate}) * {up}",
    )
    m = p.tensor(form)
    p.free(gate, up)
    o = p.linear(m, rows, hidden, width)
    y = p.residual(x, o)
    p.moved(y, rows, width)


def experts(p: Program) -> None:
    """A gate over experts, and one expert's sum."""
    rows, width, count = p.pick(32, 64, 128), p.pick(128, 256), p.pick(8, 32, 64)
    x = p.made((1, 1, rows, width))
    logits = p.linear(x, rows, width, count if count >= 32 else 32)
    if count < 32:
        logits = p.tensor(f"ttnn.slice({logits}, [0, 0, 0, 0], [1, 1, {rows}, {count}])")
    probs = p.tensor(p.pick(f"ttnn.softmax({logits}, dim=-1{p.memory()})", f"ttnn.sigmoid({logits}{p.memory()})"))
    if count < 64:
        probs = p.tensor(f"ttnn.pad({probs}, [(0, 0), (0, 0), (0, 0), (0, {64 - count})], value=-1.0)")
    k = p.pick(2, 4, 8, 32)
    top = p.tensor(f"ttnn.topk({probs}, {k}, dim=-1, largest=True, sorted=True{p.memory()})")
    values, indices = p.tensor(f"{top}[0]"), p.tensor(f"{top}[1]")
    total = p.tensor(f"ttnn.sum({values}, dim={p.pick(-1, 3)}, keepdim=True{p.memory()})")
    share = p.tensor(
        p.pick(f"ttnn.div({values}, {total})", f"ttnn.divide({values}, {total}{p.memory()})", f"{values} / {total}")
    )
    form = p.pick(0, 1, 2)
    if form == 0:
        zeros = p.tensor(f"ttnn.zeros_like({probs})")
        p.tensor(f"ttnn.scatter({zeros}, -1, {indices}, {share})")
    elif form == 1:
        least = p.tensor(f"ttnn.min({values}, dim=-1, keepdim=True)")
        mask = p.tensor(f"ttnn.ge({probs}, {least})")
        p.tensor(
            p.pick(f"ttnn.where({mask}, {probs}, 0.0{p.memory()})", f"ttnn.mul({probs}, {mask}, output_tensor={probs})")
        )
    else:
        first = p.tensor(f"{share}[:, :, :, 0:1]")
        y = p.tensor(f"ttnn.mul({x}, {first}{p.memory()})")
        p.residual(x, y)
    p.tensor(f"ttnn.typecast({indices}, ttnn.{p.pick('int32', 'uint32', 'bfloat16')})")


def convolution(p: Program) -> None:
    """Convolutions with a residual, pools and a classifier."""
    b, side, c = p.pick(1, 1, 2, 4), p.pick(8, 14, 16, 28, 32), p.pick(3, 16, 32, 64, 128)
    out = p.pick(32, 64, 128, 256)
    x = p.made((1, 1, b * side * side, c), p.pick("bf16", "bf16", "f32"), "RM")
    if p.chance(0.3):
        x = p.made((b, side, side, c), "bf16", "RM")
    kernel, stride = p.pick(1, 3, 3, 5), p.pick(1, 1, 2)
    y, size = conv(p, x, b, side, side, c, out, kernel, stride, p.pick(0, kernel // 2))
    act = p.pick("relu", "silu", "none", "gelu")
    if act != "none":
        y = p.tensor(f"ttnn.{act}({y})")
    if p.chance(0.6):
        kernel = p.pick(1, 3)
        z, _ = conv(p, y, b, size, size, out, out, kernel, 1, kernel // 2)
        if p.chance(0.5):
            y = p.tensor(f"ttnn.to_memory_config({y}, {p.pick('DRAM', 'L1', f'{z}.memory_config()')})")
        y = p.tensor(
            p.pick(
                f"ttnn.add({y}, {z})",
                f"ttnn.add_({y}, {z})",
                f"ttnn.add({y}, {z}, activations=[ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)])",
            )
        )
        p.free(z)
    if size >= 4 and p.chance(0.7):
        kernel, stride, pad = p.pick((2, 2, 0), (3, 2, 1), (3, 1, 1))
        dims = f"{b}, {size}, {size}, {out}, [{kernel}, {kernel}], [{stride}, {stride}], [{pad}, {pad}]"
        extra = (
            ", [1, 1]" if (largest := p.chance(0.6)) else p.pick("", ", ceil_mode=True", ", count_include_pad=False")
        )
        y = p.tensor(f"ttnn.{'max' if largest else 'avg'}_pool2d({y}, {dims}{extra}{p.memory()})")
        if "ceil" not in extra:
            size = (size + 2 * pad - kernel) // stride + 1
    if p.chance(0.6):
        y = p.tensor(f"ttnn.to_memory_config({y}, {p.pick('DRAM', 'L1')})")
        y = p.tensor(f"ttnn.to_layout({y}, {p.pick('RM', 'TILE')})")
        y = p.tensor(f"ttnn.reshape({y}, ({b}, {size}, {size}, {out}))")
        y = p.tensor(
            p.pick(
                f"ttnn.global_avg_pool2d({y})",
                f"ttnn.mean({y}, dim=[1, 2], keepdim=True)",
                f"ttnn.permute({y}, (0, 3, 1, 2))",
            )
        )


def conv(
    p: Program, x: str, b: int, h: int, w: int, c: int, out: int, kernel: int, stride: int, pad: int
) -> tuple[str, int]:
    """A convolution; its result and side."""
    weight = p.tensor(f"host(({out}, {c}, {kernel}, {kernel}))")
    bias = f", bias_tensor={p.tensor(f'host((1, 1, 1, {out}))')}" if p.chance(0.6) else ""
    config = ""
    if p.chance(0.6):
        layout = p.pick("HEIGHT_SHARDED", "BLOCK_SHARDED", "WIDTH_SHARDED", None)
        options = [f"weights_dtype=ttnn.{p.pick('bfloat16', 'bfloat8_b')}"]
        options += [f"shard_layout=ttnn.TensorMemoryLayout.{layout}"] if layout else []
        options += ["activation=ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)"] if p.chance(0.3) else []
        options += [f"deallocate_activation={p.chance(0.5)}"] if p.chance(0.3) else []
        options += ["act_block_h_override=32"] if p.chance(0.2) else []
        options += ["output_layout=RM"] if p.chance(0.2) else []
        options += [f"reallocate_halo_output={p.chance(0.5)}"] if p.chance(0.2) else []
        options += [f"enable_act_double_buffer={p.chance(0.5)}"] if p.chance(0.2) else []
        config = f", conv_config=ttnn.Conv2dConfig({', '.join(options)})"
    dtype = f", dtype=ttnn.{p.pick('bfloat16', 'bfloat8_b')}" if p.chance(0.4) else ""
    made = p.tensor(
        f"ttnn.conv2d(input_tensor={x}, weight_tensor={weight}{bias}, device=dev, in_channels={c}, out_channels={out}, "
        f"batch_size={b}, input_height={h}, input_width={w}, kernel_size=({kernel}, {kernel}), stride=({stride}, {stride}), "
        f"padding=({pad}, {pad}), dilation=(1, 1), groups=1{config}{dtype}{p.compute() if p.chance(0.4) else ''})"
    )
    return made, (h + 2 * pad - kernel) // stride + 1


def unet(p: Program) -> None:
    """A group norm, an activation, an upsampling and a concatenation of channels."""
    b, side, c, groups = 1, p.pick(8, 16, 32), p.pick(64, 128, 320), 32
    x = p.made((b, 1, side * side, c), "bf16", p.pick("RM", "TILE"))
    n = side * side
    cores = max(y for y in range(1, p.grid[1] + 1) if n % (32 * y) == 0)
    across = p.pick(1, 2)
    gamma, beta = (p.made((1, 1, c // 32 if c % 32 == 0 else 1, 32), "bf16", "RM") for _ in range(2))
    mask = p.tensor(f"ttnn.to_device(ttnn.create_group_norm_input_mask({c}, {groups}, {across}, ttnn.bfloat8_b), dev)")
    if p.chance(0.7):
        memory = f"shards('b', ({n // cores}, {c // across}), {across}, {cores})"
        x = p.tensor(f"ttnn.to_memory_config({x}, {memory})")
        extra = f"memory_config={memory}, core_grid=ttnn.CoreGrid(x={across}, y={cores}), inplace={p.chance(0.5)}"
    else:
        extra = f"memory_config=DRAM, core_grid=ttnn.CoreGrid(x={across}, y={cores}), inplace=False, num_out_blocks={p.pick(1, 2)}"
    extra += ", output_layout=" + p.pick("TILE", "RM") if p.chance(0.5) else ""
    y = p.tensor(
        f"ttnn.group_norm({x}, num_groups={groups}, input_mask={mask}, weight={gamma}, bias={beta}, epsilon=1e-5, {extra})"
    )
    y = p.tensor(p.pick(f"ttnn.silu({y})", f"ttnn.to_memory_config({y}, L1)"))
    y = p.tensor(f"ttnn.to_memory_config({y}, {p.pick('DRAM', 'L1')})")
    y = p.tensor(f"ttnn.to_layout({y}, RM)")
    y = p.tensor(f"ttnn.reshape({y}, ({b}, {side}, {side}, {c}))")
    y = p.tensor(f"ttnn.upsample({y}, {p.pick('2', '(2, 2)')}{p.pick('', ', mode=' + repr('nearest'))})")
    y = p.tensor(f"ttnn.reshape({y}, (1, 1, {b * side * side * 4}, {c}))")
    skip = p.made((1, 1, b * side * side * 4, 64), "bf16", p.pick("RM", "RM", "TILE"))
    if p.chance(0.5):
        y, skip = (p.tensor(f"ttnn.to_layout({n}, TILE)") for n in (y, skip))
    y = p.tensor(f"ttnn.concat([{y}, {skip}], dim=3{p.memory()})")
    conv(p, y, b, 2 * side, 2 * side, c + 64, 64, 3, 1, 1)


def embedding(p: Program) -> None:
    """Tokens and positions to vectors, and vectors to a next token."""
    b, s, width, vocabulary = p.pick(1, 2, 8), p.pick(32, 64, 128), p.pick(64, 128, 256), p.pick(512, 1000, 2048)
    tokens = p.made((b, s), "u32", "RM")
    table = p.made((vocabulary, width), "bf16", p.pick("RM", "RM", "TILE"))
    layout = p.pick("", ", layout=TILE", ", layout=TILE", ", layout=RM")
    x = p.tensor(f"ttnn.embedding({tokens}, {table}{layout}{p.memory()}{p.pick('', ', padding_idx=0')})")
    if layout != ", layout=TILE":
        x = p.tensor(p.pick(f"ttnn.to_layout({x}, TILE)", f"ttnn.tilize_with_zero_padding({x})", f"ttnn.tilize({x})"))
    places = (
        p.tensor(f"ttnn.arange(0, {s}, device=dev, dtype=ttnn.uint32, layout=RM)")
        if p.chance(0.4)
        else p.made((1, s), "u32", "RM")
    )
    places = p.tensor(f"ttnn.reshape({places}, (1, {s}))")
    pos = p.tensor(f"ttnn.embedding({places}, {p.made((512, width), 'bf16', 'RM')}, layout=TILE)")
    x = p.residual(x, pos)
    if p.chance(0.5):
        x = p.tensor(
            p.pick(
                f"ttnn.unsqueeze({x}, 1)", f"ttnn.unsqueeze_to_4D({x})", f"ttnn.reshape({x}, (1, 1, {b * s}, {width}))"
            )
        )
    h = p.norm(x, b * s, width)
    last = p.tensor(
        p.pick(f"{h}[..., -32:, :]", f"{h}[..., -1:, :]", f"ttnn.slice({h}, [0] * len({h}.shape), list({h}.shape))")
    )
    logits = p.tensor(f"ttnn.linear({last}, {p.weight(width, 2048)}{p.memory()}{p.compute()})")
    form = p.pick(0, 1, 2, 3)
    if form == 0:
        rows = p.tensor(p.pick(f"ttnn.untilize({logits}, use_multicore=True)", f"ttnn.to_layout({logits}, RM)"))
        p.tensor(f"ttnn.argmax({rows}, dim=-1, keepdim={p.chance(0.5)})")
    elif form == 1:
        top = p.tensor(f"ttnn.topk({logits}, 32)")
        p.tensor(f"ttnn.softmax({top}[0], dim=-1)")
    elif form == 2:
        scaled = p.tensor(f"ttnn.multiply({logits}, 0.7, dtype=ttnn.bfloat16)")
        p.tensor(f"ttnn.log(ttnn.softmax({scaled}, dim=-1))")
        p.tensor(f"ttnn.max({scaled}, dim=-1, keepdim={p.chance(0.5)})")
    else:
        p.tensor(f"ttnn.argmax({logits}, dim=-1)")


def windows(p: Program) -> None:
    """A shifted-window block: rows, rolls, windows, attention."""
    b, side, w, c = p.pick(1, 2), p.pick(8, 16), p.pick(4, 8), p.pick(32, 64, 96)
    layout = p.pick("RM", "TILE")
    x = p.made((b, side, side, c), "bf16", layout)
    y = x
    if p.chance(0.5):
        y = p.tensor(p.pick(f"ttnn.roll({y}, [{-(w // 2)}, {-(w // 2)}], [1, 2])", f"ttnn.roll({y}, {w // 2}, 1)"))
    n = side // w
    y = p.tensor(f"ttnn.reshape({y}, ({b}, {n}, {w}, {n}, {w}, {c}))")
    y = p.tensor(f"ttnn.permute({y}, (0, 1, 3, 2, 4, 5))")
    y = p.tensor(f"ttnn.reshape({y}, ({b * n * n}, {w * w}, {c}))")
    if layout == "RM":
        y = p.tensor(f"ttnn.to_layout({y}, TILE)")
    qkv = p.tensor(f"ttnn.linear({y}, {p.weight(c, 3 * c)}{p.memory()})")
    heads = c // 32
    qkv = p.tensor(f"ttnn.reshape({qkv}, ({b * n * n}, {w * w}, 3, {heads}, 32))")
    qkv = p.tensor(f"ttnn.permute({qkv}, (2, 0, 3, 1, 4))")
    q, k, v = (p.tensor(p.pick(f"{qkv}[{i}]", f"ttnn.squeeze({qkv}[{i}:{i + 1}], 0)")) for i in range(3))
    k = p.tensor(p.pick(f"ttnn.permute({k}, (0, 1, 3, 2))", f"ttnn.transpose({k}, -2, -1)"))
    scores = p.tensor(f"ttnn.matmul({q}, {k}{p.memory()})")
    bias = p.made((1, heads, w * w, w * w))
    scores = p.tensor(f"ttnn.add({scores}, {bias})")
    probs = p.tensor(f"ttnn.softmax({scores}, dim=-1)")
    y = p.tensor(f"ttnn.matmul({probs}, {v})")
    y = p.tensor(p.pick(f"ttnn.permute({y}, (0, 2, 1, 3))", f"ttnn.transpose({y}, 1, 2)"))
    y = p.tensor(f"ttnn.reshape({y}, ({b * n * n}, {w * w}, {c}))")
    y = p.tensor(f"ttnn.linear({y}, {p.weight(c, c)})")
    y = p.tensor(f"ttnn.reshape({y}, ({b}, {side * side}, {c}))")
    x = p.tensor(f"ttnn.to_layout(ttnn.reshape({x}, ({b}, {side * side}, {c})), TILE)")
    p.residual(x, y)


def patches(p: Program) -> None:
    """An image to patches, a class token and positions."""
    b, side, patch, width = p.pick(1, 2, 8), p.pick(16, 32), p.pick(4, 8), p.pick(64, 128)
    n = side // patch
    x = p.made((b, 3, side, side), "bf16", "RM")
    x = p.tensor(f"ttnn.permute({x}, (0, 2, 3, 1))")
    if p.chance(0.5):
        x = p.tensor(f"ttnn.pad({x}, [(0, 0), (0, 0), (0, 0), (0, 1)], value=0)")
        channels = 4
        if p.chance(0.6):
            x = p.tensor(f"ttnn.fold({x}, {patch}, {patch})")
        else:
            x = p.tensor(f"ttnn.reshape({x}, ({b}, {side}, {n}, {4 * patch}))")
            x = p.tensor(f"ttnn.fold({x}, {patch}, 1)")
    else:
        channels = 3
        x = p.tensor(f"ttnn.reshape({x}, ({b}, {n}, {patch}, {n}, {patch}, 3))")
        x = p.tensor(f"ttnn.permute({x}, (0, 1, 3, 2, 4, 5))")
    x = p.tensor(f"ttnn.reshape({x}, ({b}, {n * n}, {patch * patch * channels}))")
    x = p.tensor(f"ttnn.to_layout({x}, TILE{p.pick('', ', dtype=ttnn.bfloat8_b')})")
    x = p.tensor(f"ttnn.linear({x}, {p.weight(patch * patch * channels, width)}{p.memory()})")
    token = p.made((1, 1, width))
    if b > 1:
        token = p.tensor(p.pick(f"ttnn.expand({token}, ({b}, 1, {width}))", f"ttnn.repeat({token}, ({b}, 1, 1))"))
    if p.chance(0.5):
        x, token = (p.tensor(f"ttnn.to_layout({n}, RM)") for n in (x, token))
    x = p.tensor(f"ttnn.concat([{token}, {x}], dim=1{p.memory()})")
    x = p.tensor(f"ttnn.to_layout({x}, TILE)")
    x = p.residual(x, p.made((1, n * n + 1, width)))
    chunks = p.tensor(p.pick(f"ttnn.split({x}, {width // 2}, dim=2)", f"ttnn.chunk({x}, 2, dim=-1)"))
    p.tensor(f"ttnn.mul({chunks}[0], ttnn.gelu({chunks}[1]))")
    p.tensor(f"ttnn.mean({x}, dim={p.pick(1, -2)}, keepdim={p.chance(0.5)})")


def moves(p: Program) -> None:
    """A tensor through memories, layouts and formats with element-wise functions between."""
    rows, width = p.pick(32, 64, 96, 128, 224, 256), p.pick(64, 128, 192, 256, 512)
    x = p.made((1, 1, rows, width), p.pick(*FORMATS))
    for _ in range(p.random.randrange(4, 10)):
        form = p.pick(
            "move", "move", "reshard", "unary", "binary", "scalar", "cast", "layout", "inplace", "clone", "free"
        )
        if form in ("move", "reshard"):
            x = p.moved(x, rows, width)
        elif form == "unary":
            x = p.tensor(f"ttnn.{p.pick('relu', 'gelu', 'exp', 'sigmoid', 'sqrt', 'neg', 'tanh')}({x}{p.memory()})")
        elif form == "binary":
            y = p.made(p.pick((1, 1, rows, width), (1, 1, 1, width), (1, 1, rows, 1)), p.pick("bf16", "bf8"))
            x = p.tensor(f"ttnn.{p.pick('add', 'mul', 'sub')}({x}, {y}{p.memory()})")
        elif form == "scalar":
            x = p.tensor(
                p.pick(f"{x} * 2.0", f"ttnn.add({x}, 1.0{p.memory()})", f"ttnn.pow({x}, 2)", f"ttnn.rsqrt({x})")
            )
        elif form == "cast":
            x = p.tensor(f"ttnn.typecast({x}, ttnn.{p.pick('bfloat16', 'bfloat8_b', 'float32')})")
        elif form == "layout":
            y = p.tensor(f"ttnn.to_layout({x}, RM)")
            x = p.tensor(f"ttnn.to_layout({y}, TILE)")
        elif form == "inplace":
            p.lines.append(p.pick(f"ttnn.relu({x}, output_tensor={x})", f"ttnn.mul_({x}, 0.5)", f"ttnn.add_({x}, {x})"))
        elif form == "clone":
            x = p.tensor(
                p.pick(
                    f"ttnn.clone({x})",
                    f"ttnn.move({x})",
                    f"ttnn.reallocate({x})",
                    f"ttnn.clone({x}, memory_config=DRAM)",
                )
            )
        elif p.count > 2:
            p.lines.append(f"ttnn.deallocate(t{p.random.randrange(p.count - 1)})")


BLOCKS: tuple[Callable[[Program], None], ...] = (
    prefill, bert, decode, mlp, experts, convolution, convolution, unet, embedding, windows, patches, moves,
)  # fmt: skip


def draw(seed: str, grid: tuple[int, int]) -> list[str]:
    """The lines of one program of one or two blocks."""
    program = Program(seed, grid)
    for _ in range(program.pick(1, 2)):
        program.pick(*BLOCKS)(program)
    return program.lines
