"""Formats beside memcpy of their source, lane sums beside torch.sum and a plain read; kernels on and off.

    python benchmarks/formats.py [--size 4096] [--threads 1] [--rounds 15]

Minimum of interleaved rounds. "memcpy" copies the source into memory that already exists.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from bench_rows import BenchRow, note

from ttmesh.base import settings
from ttmesh.base.dtypes import Layout, bfloat4_b, bfloat8_b
from ttmesh.chip.backends.registry import find_usable_backend
from ttmesh.chip.formats.block_float import quantise
from ttmesh.chip.formats.kernels import loader
from ttmesh.chip.formats.kernels.lane_sum import lane_sum
from ttmesh.chip.formats.packing import pack, unpack
from ttmesh.chip.formats.tilize import tilize, untilize

TILED = Layout.TILE


def fastest_ms(rows: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The minimum of each row, rounds interleaved so that a busy moment hits all of them; small work is repeated."""
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(rounds):
        for name, row in rows.items():
            use_kernels("torch" not in name)
            row()
            repeats = max(1, min(1000, int(0.2 / best[name])))
            begin = time.perf_counter()
            for _ in range(repeats):
                row()
            best[name] = min(best[name], (time.perf_counter() - begin) / repeats * 1e3)
    return best


def use_kernels(on: bool) -> None:
    if settings.get_bool("TTMESH_KERNELS") != on:
        settings.override("TTMESH_KERNELS", on)
        loader.forget()


def format_rows(values: torch.Tensor) -> dict[str, Callable[[], object]]:
    shape = (values.shape[0], values.shape[1])
    packed = {dtype: pack(values, dtype, TILED) for dtype in (bfloat8_b, bfloat4_b)}
    ordered = tilize(values)
    return {
        "bfloat8_b quantise (host)": lambda: quantise(values, bfloat8_b),
        "bfloat8_b quantise (device)": lambda: quantise(values, bfloat8_b, packer="device"),
        "bfloat8_b pack": lambda: pack(values, bfloat8_b, TILED),
        "bfloat8_b unpack": lambda: unpack(packed[bfloat8_b], shape, bfloat8_b, TILED),
        "bfloat4_b quantise (host)": lambda: quantise(values, bfloat4_b),
        "bfloat4_b pack": lambda: pack(values, bfloat4_b, TILED),
        "bfloat4_b unpack": lambda: unpack(packed[bfloat4_b], shape, bfloat4_b, TILED),
        "tilize": lambda: tilize(values),
        "untilize": lambda: untilize(ordered, shape),
    }


def print_formats(size: int, rounds: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        values = torch.randn(size, size, generator=torch.Generator().manual_seed(0)).to(dtype)
        target = torch.empty_like(values)
        rows: dict[str, Callable[[], object]] = {"memcpy": lambda t=target, v=values: t.copy_(v)}
        names = format_rows(values)
        rows |= names | {f"torch {name}": row for name, row in names.items()}
        best = fastest_ms(rows, rounds)
        copy = best["memcpy"]
        print(f"\n{size}x{size} {dtype}: memcpy {copy:.2f} ms ({values.nbytes / copy / 1e6:.1f} GB/s)")
        print(f"  {'':30s}{'kernels ms':>11s}{'x memcpy':>10s}{'torch ms':>10s}{'x memcpy':>10s}")
        for name in names:
            on_ms, off_ms = best[name], best[f"torch {name}"]
            row = f"{name} of {str(dtype).removeprefix('torch.')}"
            note(BenchRow(row, "ms", on_ms, {"torch": off_ms}, copy, "memcpy", peer_aim=1.0))
            print(f"  {name:30s}{on_ms:11.2f}{on_ms / copy:10.2f}{off_ms:10.2f}{off_ms / copy:10.2f}")


def print_sums(rounds: int) -> None:
    print("\nsum of 8 lanes [2, 4, n] over both axes, µs")
    print(f"  {'lane bytes':>12s} {'dtype':15s}{'kernel':>10s}{'chain of adds':>15s}{'torch.sum':>11s}{'read':>10s}")
    for dtype in (torch.float32, torch.bfloat16):
        for size_bytes in (1 << 10, 1 << 14, 1 << 16, 1 << 20, 16 << 20):
            values = torch.randn(2, 4, size_bytes // dtype.itemsize).to(dtype)
            words = values.view(torch.float32)
            best = fastest_ms(
                {
                    "kernel": lambda v=values: lane_sum(v, (0, 1)),
                    "torch chain": lambda v=values: lane_sum(v, (0, 1)),
                    "torch.sum": lambda v=values: v.sum((0, 1), keepdim=True),
                    "read": lambda w=words: w.sum(),
                },
                rounds,
            )
            us = [best[name] * 1e3 for name in ("kernel", "torch chain", "torch.sum", "read")]
            row = f"sum of 8 lanes, {size_bytes >> 10} KiB {str(dtype).removeprefix('torch.')}"
            note(BenchRow(row, "µs", us[0], {"chain of adds": us[1], "torch.sum": us[2]}, us[3], "read", peer_aim=1.0))
            print(f"  {size_bytes:12d} {dtype!s:15s}{us[0]:10.1f}{us[1]:15.1f}{us[2]:11.1f}{us[3]:10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    find_usable_backend("cpu").start()
    torch.set_num_threads(options.threads)
    print(
        f"torch {torch.__version__}, {options.threads} thread(s), kernels {loader.library('block_tiles') is not None}"
    )
    print_formats(options.size, options.rounds)
    print_sums(options.rounds)


if __name__ == "__main__":
    main()
