"""The steps of random programs: Python statements on tensors t0, t1, ... chosen by what the tensors are."""

from __future__ import annotations

import random
from math import prod

from calls import names

UNARY = names(
    "relu gelu exp sqrt silu neg abs sigmoid tanh square rsqrt reciprocal log erf floor sign log1p "
    "isfinite logical_not cos softplus mish hardswish cbrt clone identity"
)
BINARY = names(
    "add subtract multiply divide maximum minimum eq lt ge ne logical_and squared_difference pow rsub "
    "ldexp logaddexp hypot bitwise_and"
)
IN_PLACE = names("add_ subtract_ multiply_ divide_ eq_ logical_or_ rsub_")
FORMATS = ("bf16",) * 7 + ("f32",) * 3 + ("bf8",) * 3 + ("i32", "u32", "u16", "bf4")
NAMES = {
    "BFLOAT16": "bf16", "FLOAT32": "f32", "BFLOAT8_B": "bf8", "BFLOAT4_B": "bf4",
    "UINT32": "u32", "INT32": "i32", "UINT16": "u16", "UINT8": "u8",
}  # fmt: skip


class ProgramDraw:
    """Draws one program; `tensors` are those that its steps have made so far."""

    def __init__(self, seed: str, tensors: dict[str, object], grid: tuple[int, int]) -> None:
        self.random, self.tensors, self.grid = random.Random(seed), tensors, grid
        self.count = 0

    def step(self, number: int) -> str:
        """The next statement."""
        live = self.live()
        if number < 2 or not live or (len(live) < 3 and self.chance(0.3)):
            return self.make()
        if len(live) > 7 and self.chance(0.6):
            return self.free(self.random.choice(live))
        kinds = {
            self.unary: 9, self.binary: 14, self.in_place: 4, self.matmul: 8, self.reduction: 7, self.norm: 6,
            self.order: 3, self.shape: 10, self.move: 16, self.join: 5, self.layout: 8, self.memory: 14, self.cast: 6,
            self.ternary: 3, self.create: 2, self.make: 5, self.heads: 3, self.drop: 7, self.lookup: 2,
        }  # fmt: skip
        chosen = self.random.choices(list(kinds), list(kinds.values()))[0]
        return chosen()

    # What is there.

    def live(self) -> list[str]:
        return [
            name for name, tensor in self.tensors.items() if hasattr(tensor, "is_allocated") and tensor.is_allocated()
        ]

    def any(self) -> str:
        """A tensor, the latest more often."""
        live = self.live()
        return live[-1] if self.chance(0.45) else self.random.choice(live)

    def new(self) -> str:
        self.count += 1
        return f"t{self.count - 1}"

    def shape_of(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def dtype_of(self, name: str) -> str:
        return NAMES.get(self.tensors[name].dtype.name, "bf16")

    def is_rows(self, name: str) -> bool:
        return self.tensors[name].layout.name == "ROW_MAJOR"

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, *choices: object) -> object:
        return self.random.choice(choices)

    # Arguments.

    def draw_shape(self) -> tuple[int, ...]:
        rank = self.random.choice((1, 2, 2, 3, 4, 4, 4, 4, 5))
        if self.chance(0.7):
            last = [self.random.choice((32, 64, 96, 128, 256)) for _ in range(min(rank, 2))]
        else:
            last = [self.random.choice((1, 5, 16, 17, 32, 40, 50, 64, 70)) for _ in range(min(rank, 2))]
        return (*(self.random.choice((1, 1, 1, 2, 3, 4)) for _ in range(max(rank - 2, 0))), *last)

    def sharding(self, shape: tuple[int, ...], rows: bool = False) -> str:
        """Shards over some cores: mostly whole tiles that fill the cores evenly, now and then not."""
        tile = 1 if rows else 32
        height, width = prod(shape[:-2]) * -(-shape[-2] // tile) * tile, shape[-1]
        if rows and height % 32 == 0 and width % 32 == 0 and self.chance(0.6):
            tile = 32
        high, wide = -(-height // tile), -(-width // tile)
        kind = self.random.choice("hhwbb")
        most_x, most_y = self.grid

        def share(units: int, most: int) -> tuple[int, int]:
            even = [n for n in range(1, min(units, most) + 1) if units % n == 0]
            cores = self.random.choice(even) if self.chance(0.85) else self.random.randint(1, min(units + 1, most))
            return cores, -(-units // cores)

        if kind == "b":
            (y, down), (x, across) = share(high, most_y), share(wide, most_x)
            transposed = self.chance(0.12)
            return (
                f"shards('b', ({down * tile}, {across * tile}), {y if transposed else x}, {x if transposed else y}"
                + (", orientation='COL_MAJOR')" if transposed else ")")
            )
        cores, each = share(high if kind == "h" else wide, self.random.choice((8, most_x, most_x * 2)))
        x, y = (cores, 1) if cores <= most_x else next((n, cores // n) for n in range(most_x, 0, -1) if cores % n == 0)
        if y > most_y:
            x, y, each = 1, 1, high if kind == "h" else wide
        extent = (
            (each * tile, wide * tile if tile > 1 else width)
            if kind == "h"
            else (high * tile if tile > 1 else height, each * tile)
        )
        return f"shards('{kind}', {extent}, {x}, {y})"

    def config(self, shape: tuple[int, ...], sharded: float = 0.35, rows: bool = False) -> str:
        if self.chance(sharded) and len(shape) > 1 and min(shape) > 0:
            return self.sharding(shape, rows)
        return self.random.choice(("DRAM", "DRAM", "L1"))

    def placed(self, shape: tuple[int, ...] | None = None, probability: float = 0.25) -> str:
        """The keyword memory_config, now and then."""
        if not self.chance(probability):
            return ""
        return f", memory_config={self.config(shape, 0.3) if shape else self.pick('DRAM', 'L1')}"

    # Steps.

    def make(self) -> str:
        shape, dtype = self.draw_shape(), self.random.choice(FORMATS)
        rows = dtype not in ("bf8", "bf4") and self.chance(0.2)
        where = self.config(shape, 0.3, rows)
        return f"{self.new()} = mk({shape}, {dtype!r}, {'RM' if rows else 'TILE'}, {where})"

    def create(self) -> str:
        x = self.any()
        kind = self.pick("zeros_like", "ones_like", "full_like", "zeros", "ones", "full", "empty", "arange", "rand")
        if str(kind).endswith("_like"):
            return f"{self.new()} = ttnn.{kind}({x}{', 2.5' if kind == 'full_like' else ''}{self.placed()})"
        if kind == "arange":
            return f"{self.new()} = ttnn.arange(0, {self.pick(32, 64, 100)}, 1, device=dev)"
        dtype = "" if self.chance(0.3) else f", dtype=DT[{self.pick('bf16', 'f32', 'bf16', 'bf8')!r}]"
        if kind == "rand":
            return f"{self.new()} = ttnn.rand({self.draw_shape()}, dev, dtype=DT['bf16'])"
        value = ", 1.5" if kind == "full" else ""
        layout = f", layout={self.pick('TILE', 'TILE', 'RM')}"
        return f"{self.new()} = ttnn.{kind}({self.draw_shape()}{value}{dtype}{layout}, device=dev{self.placed()})"

    def free(self, name: str) -> str:
        return f"ttnn.deallocate({name})"

    def drop(self) -> str:
        name = self.random.choice(self.live())
        form = self.pick(
            "ttnn.deallocate({0})",
            "del {0}",
            "ttnn.deallocate({0})",
            "{1} = ttnn.reallocate({0})",
            "{1} = ttnn.move({0})",
        )
        return str(form).format(name, self.new() if "{1}" in str(form) else "")

    def unary(self) -> str:
        x = self.any()
        name = self.random.choice(UNARY)
        if self.chance(0.15) and name not in ("clone", "identity", "cbrt", "mish"):
            return f"ttnn.{name}({x}, output_tensor={x if self.chance(0.6) else self.like(x)})"
        return f"{self.new()} = ttnn.{name}({x}{self.placed(self.shape_of(x))})"

    def like(self, name: str) -> str:
        """A tensor of the same shape."""
        same = [other for other in self.live() if other != name and self.shape_of(other) == self.shape_of(name)]
        return self.random.choice(same) if same else name

    def partner(self, x: str) -> str:
        """A second operand: a tensor that broadcasts, a new one, or a number."""
        shape, kind = self.shape_of(x), self.random.random()
        fitting = [
            other for other in self.live()
            if all(a == b or 1 in (a, b) for a, b in zip(self.shape_of(other)[::-1], shape[::-1], strict=False))
        ]  # fmt: skip
        if kind < 0.5 and fitting:
            return self.random.choice(fitting)
        if kind < 0.7:
            return str(self.pick("2", "0.5", "-1.0"))
        narrow = list(shape)
        if self.chance(0.5) and narrow:
            narrow[self.random.randrange(len(narrow))] = 1
        dtype = self.dtype_of(x) if self.chance(0.8) else self.random.choice(FORMATS)
        layout = "RM" if self.is_rows(x) and dtype not in ("bf8", "bf4") else "TILE"
        return f"mk({tuple(narrow)}, {dtype!r}, {layout}, {self.pick('DRAM', 'DRAM', 'L1')})"

    def binary(self) -> str:
        x = self.any()
        y, name = self.partner(x), self.random.choice(BINARY)
        if self.chance(0.08):
            return f"ttnn.{name}({x}, {y}, output_tensor={self.like(x)})"
        dtype = (
            f", dtype=DT[{self.pick('bf16', 'f32', 'bf8')!r}]"
            if self.chance(0.1) and name in ("add", "multiply", "subtract")
            else ""
        )
        placed = self.placed(self.shape_of(x), 0.2)
        if self.chance(0.1) and name in ("add", "multiply", "subtract"):
            placed += f", activations=[ttnn.UnaryWithParam(ttnn.UnaryOpType.{self.pick('RELU', 'SILU')})]"
        if self.chance(0.15) and not dtype and not placed and name in ("add", "multiply", "subtract", "divide"):
            sign = {"add": "+", "multiply": "*", "subtract": "-", "divide": "/"}[name]
            return f"{self.new()} = {x} {sign} {y}"
        return f"{self.new()} = ttnn.{name}({x}, {y}{dtype}{placed})"

    def in_place(self) -> str:
        x = self.any()
        return f"ttnn.{self.random.choice(IN_PLACE)}({x}, {self.partner(x)})"

    def ternary(self) -> str:
        x = self.any()
        name = self.pick("where", "addcmul", "addcdiv", "lerp", "mac", "clamp")
        y, z = self.partner(x), self.partner(x)
        if name == "clamp":
            return f"{self.new()} = ttnn.clamp({x}, -1.0, 1.0{self.placed()})"
        return f"{self.new()} = ttnn.{name}({x}, {y}, {z})"

    def matmul(self) -> str:
        candidates = [name for name in self.live() if len(self.shape_of(name)) > 1]
        if not candidates:
            return self.make()
        x = self.random.choice(candidates)
        shape = self.shape_of(x)
        inner, name = shape[-1], self.pick("matmul", "linear", "matmul")
        fitting = [other for other in candidates if self.shape_of(other)[-2] == inner]
        transposed = [other for other in candidates if self.shape_of(other)[-1] == inner]
        wide = self.random.choice((32, 64, 96, 128, 256, 50))
        y = f"mk(({inner}, {wide}), {self.pick('bf16', 'bf16', 'bf8', 'f32', 'bf4')!r})"
        extra = ""
        if fitting and self.chance(0.45):
            y = self.random.choice(fitting)
            wide = self.shape_of(y)[-1]
        elif transposed and self.chance(0.4):
            y, extra = self.random.choice(transposed), ", transpose_b=True"
            wide = self.shape_of(y)[-2]
        out = (*shape[:-1], wide)
        if name == "linear" and self.chance(0.6):
            extra += (
                f", bias=mk({self.pick((1, wide), (1, 1, 1, wide), (wide,))}, {self.pick('bf16', 'bf16', 'bf8')!r})"
            )
        if name == "linear" and self.chance(0.3):
            extra += f", activation={self.pick('relu', 'gelu', 'silu')!r}"
        if self.chance(0.15):
            extra += f", dtype=DT[{self.pick('bf16', 'f32', 'bf8')!r}]"
        if self.chance(0.12):
            rows, columns = self.random.randint(1, self.grid[1]), self.random.randint(1, self.grid[0])
            extra += f", core_grid=ttnn.CoreGrid(y={rows}, x={columns})"
        return f"{self.new()} = ttnn.{name}({x}, {y}{extra}{self.placed(out, 0.3)})"

    def dim_of(self, x: str) -> int:
        rank = len(self.shape_of(x))
        return self.random.randrange(-rank, rank) if rank else 0

    def reduction(self) -> str:
        x = self.any()
        name = self.random.choice(["sum", "mean", "max", "min", "prod", "std", "var", "argmax", "cumsum"])
        rank = len(self.shape_of(x))
        if name == "cumsum":
            return f"{self.new()} = ttnn.cumsum({x}, dim={self.dim_of(x)})"
        if name == "argmax":
            return (
                f"{self.new()} = ttnn.argmax({x}, dim={self.pick(-1, -1, self.dim_of(x))}, keepdim={self.chance(0.5)})"
            )
        dims: object = self.pick(-1, -2, self.dim_of(x), -1)
        if rank > 1 and name not in ("prod",) and self.chance(0.2):
            dims = sorted(self.random.sample(range(rank), 2))
        keep = "" if name == "prod" or self.chance(0.4) else f", keepdim={self.chance(0.7)}"
        if self.chance(0.1) and name != "prod":
            return f"{self.new()} = ttnn.{name}({x}{self.placed()})"
        return f"{self.new()} = ttnn.{name}({x}, dim={dims}{keep}{self.placed()})"

    def norm(self) -> str:
        x = self.any()
        name = self.random.choice(["softmax", "softmax", "layer_norm", "rms_norm", "log_softmax", "softmax_in_place"])
        width = self.shape_of(x)[-1] if self.shape_of(x) else 1
        if name in ("layer_norm", "rms_norm"):
            weight = f", weight=mk((1, {width}), {self.pick('bf16', 'bf16', 'f32')!r})" if self.chance(0.6) else ""
            if self.chance(0.2):
                weight += f", residual_input_tensor={self.like(x)}"
            return f"{self.new()} = ttnn.{name}({x}{weight}{self.placed(None, 0.2)})"
        if name == "softmax_in_place":
            return f"ttnn.softmax_in_place({x})"
        if name == "log_softmax":
            name = "softmax"
        return f"{self.new()} = ttnn.{name}({x}, dim={self.pick(-1, -1, -2, self.dim_of(x))}{self.placed(None, 0.2)})"

    def order(self) -> str:
        x = self.any()
        if self.chance(0.5):
            return f"{self.new()} = ttnn.topk({x}, {self.pick(32, 8, 1)}, dim=-1)[{self.pick(0, 1)}]"
        return f"{self.new()} = ttnn.sort({x}, dim={self.pick(-1, -1, self.dim_of(x))})[{self.pick(0, 1)}]"

    def shape(self) -> str:
        x = self.any()
        shape = self.shape_of(x)
        total, rank = prod(shape), len(shape)
        kind = self.pick("reshape", "reshape", "reshape", "squeeze", "unsqueeze", "expand", "to_4D", "view")
        if kind == "squeeze":
            return f"{self.new()} = ttnn.squeeze({x}, {self.pick(0, -1, 1)})"
        if kind == "unsqueeze":
            return f"{self.new()} = ttnn.unsqueeze({x}, {self.pick(0, 1, -1, -2)})"
        if kind == "to_4D":
            return f"{self.new()} = ttnn.unsqueeze_to_4D({x})"
        if kind == "expand":
            wide = tuple(self.random.choice((2, 3)) if n == 1 and self.chance(0.6) else n for n in shape)
            return f"{self.new()} = ttnn.expand({x}, {wide})"
        wanted = [(1, *shape), (total,), (1, total)]
        if rank > 1:
            wanted += [(prod(shape[:-1]), shape[-1]), (1, 1, prod(shape[:-1]), shape[-1]), (shape[0], -1), shape[::-1]]
            if shape[-1] % 32 == 0:
                wanted += [(*shape[:-1], shape[-1] // 32, 32), (prod(shape[:-1]) * 2, shape[-1] // 2)]
            if shape[-2] % 2 == 0:
                wanted += [(*shape[:-2], shape[-2] // 2, shape[-1] * 2), (*shape[:-2], 2, shape[-2] // 2, shape[-1])]
        chosen = self.random.choice(wanted)
        if kind == "view":
            chosen = tuple(total // abs(prod(chosen)) if n == -1 else n for n in chosen)
            return f"{self.new()} = ttnn.view({x}, {chosen})"
        return f"{self.new()} = ttnn.reshape({x}, {chosen}{self.placed(None, 0.08)})"

    def move(self) -> str:
        x = self.any()
        shape = self.shape_of(x)
        rank = len(shape)
        if rank == 0:
            return self.make()
        kind = self.random.choice(
            names(
                "permute permute transpose transpose slice slice slice pad getitem repeat split repeat_interleave roll "
                "narrow chunk"
            )
        )
        dim, new = self.dim_of(x), self.new()
        if kind == "permute":
            order = list(range(rank))
            self.random.shuffle(order)
            return f"{new} = ttnn.permute({x}, {tuple(order)}{self.placed(None, 0.12)})"
        if kind == "transpose":
            first, second = self.pick(-2, dim) if rank > 1 else dim, self.pick(-1, dim)
            return f"{new} = ttnn.transpose({x}, {first}, {second}{self.placed(None, 0.12)})"
        if kind == "slice":
            aligned = self.chance(0.6)
            start, end = [], []
            for i, n in enumerate(shape):
                unit = 32 if aligned and i >= rank - 2 and n >= 32 else 1
                first = self.random.randrange(max(n // unit // 2, 1)) * unit if self.chance(0.4) else 0
                last = (
                    n
                    if self.chance(0.5)
                    else min(n, max(first + unit, (n - self.random.randrange(max(n // 2, 1))) // unit * unit))
                )
                start.append(first)
                end.append(max(last, first + 1))
            step = f", {[self.random.choice((1, 1, 2)) for _ in shape]}" if self.chance(0.1) else ""
            return f"{new} = ttnn.slice({x}, {start}, {end}{step}{self.placed(None, 0.12)})"
        if kind == "pad":
            pads = [(0, self.random.choice((0, 0, 1, 3, 32))) for _ in shape]
            return f"{new} = ttnn.pad({x}, {pads}, {self.pick('0.0', '1.0', '0')}{self.placed(None, 0.1)})"
        if kind == "getitem":
            at = self.pick("0", f"..., :{max(shape[-1] // 2, 1)}", "-1:", f"{shape[0] // 2}:")
            return f"{new} = {x}[{at}]"
        if kind == "repeat":
            return f"{new} = ttnn.repeat({x}, {tuple(self.random.choice((1, 1, 2, 3)) for _ in shape)})"
        if kind == "repeat_interleave":
            return f"{new} = ttnn.repeat_interleave({x}, 2, dim={dim})"
        if kind == "split":
            return f"{new} = ttnn.split({x}, {max(shape[dim] // 2, 1)}, {dim})[{self.pick(0, -1)}]"
        if kind == "chunk":
            return f"{new} = ttnn.chunk({x}, 2, {dim})[0]"
        if kind == "narrow":
            return f"{new} = ttnn.narrow({x}, {dim}, 0, {max(shape[dim] // 2, 1)})"
        return f"{new} = ttnn.roll({x}, {self.pick(1, 3, -2)}, {dim})"

    def join(self) -> str:
        x = self.any()
        shape, dim = self.shape_of(x), self.dim_of(x)
        alike = [
            other for other in self.live()
            if len(self.shape_of(other)) == len(shape)
            and all(
                a == b
                for i, (a, b) in enumerate(zip(self.shape_of(other), shape, strict=True))
                if i != dim % max(len(shape), 1)
            )
        ]  # fmt: skip
        other = self.random.choice(alike) if alike else x
        if self.chance(0.2):
            return f"{self.new()} = ttnn.stack([{x}, {self.like(x)}], dim={dim})"
        return f"{self.new()} = ttnn.concat([{x}, {other}], dim={dim}{self.placed(None, 0.2)})"

    def layout(self) -> str:
        x = self.any()
        kind = self.pick(
            "to_layout", "to_layout", "to_layout", "tilize", "untilize", "tilize_with_zero_padding", "other"
        )
        if kind == "to_layout":
            wanted = "TILE" if self.is_rows(x) and self.chance(0.85) else self.pick("RM", "RM", "TILE")
            return f"{self.new()} = ttnn.to_layout({x}, {wanted})"
        if kind == "other":
            layout, dtype = self.pick("TILE", "RM"), self.pick("bf16", "f32", "bf8")
            return f"{self.new()} = ttnn.to_layout({x}, {layout}, dtype=DT[{dtype!r}])"
        return f"{self.new()} = ttnn.{kind}({x}{self.placed(None, 0.15)})"

    def memory(self) -> str:
        x = self.any()
        shape, rows = self.shape_of(x), self.is_rows(x)
        is_sharded = self.tensors[x].is_sharded()
        if is_sharded and self.chance(0.3):
            return f"{self.new()} = ttnn.sharded_to_interleaved({x}{self.pick('', ', DRAM', ', L1')})"
        if not is_sharded and self.chance(0.25) and len(shape) > 1 and min(shape) > 0:
            return f"{self.new()} = ttnn.interleaved_to_sharded({x}, {self.sharding(shape, rows)})"
        dtype = f", dtype=DT[{self.pick('bf16', 'f32', 'bf8')!r}]" if self.chance(0.08) else ""
        return f"{self.new()} = ttnn.to_memory_config({x}, {self.config(shape, 0.65, rows)}{dtype})"

    def cast(self) -> str:
        x = self.any()
        return f"{self.new()} = ttnn.typecast({x}, DT[{self.random.choice(FORMATS)!r}]{self.placed(None, 0.1)})"

    def heads(self) -> str:
        fitting = [name for name in self.live() if len(self.shape_of(name)) == 4]
        if not fitting:
            return self.make()
        x = self.random.choice(fitting)
        kind = self.pick("concat_heads", "sdpa", "create_heads", "rotary")
        if kind == "concat_heads":
            return f"{self.new()} = ttnn.{self.pick('experimental.nlp_concat_heads', 'transformer.concatenate_heads')}({x})"
        if kind == "sdpa":
            call = (
                f"ttnn.transformer.scaled_dot_product_attention({x}, {x}, {self.like(x)}, is_causal={self.chance(0.5)})"
            )
            return f"{self.new()} = {call}"
        width = self.shape_of(x)[-1]
        if kind == "create_heads" and width % 96 == 0:
            counts = f"num_heads={width // 96}, num_kv_heads={width // 96}"
            return f"{self.new()} = ttnn.experimental.nlp_create_qkv_heads({x}, {counts})[0]"
        return f"{self.new()} = ttnn.experimental.rotary_embedding({x}, mk((1, 1, 256, {width})), mk((1, 1, 256, {width})))"

    def lookup(self) -> str:
        width = self.random.choice((32, 64, 128))
        rows = [name for name in self.live() if self.is_rows(name) and len(self.shape_of(name)) == 2]
        table = self.random.choice(rows) if rows and self.chance(0.6) else f"mk((64, {width}), 'bf16', RM)"
        layout = self.pick("", ", layout=TILE", ", layout=RM")
        indices = f"mk(({self.pick(1, 2)}, {self.pick(32, 64)}), 'u32', RM)"
        return f"{self.new()} = ttnn.embedding({indices}, {table}{layout}{self.placed(None, 0.2)})"
