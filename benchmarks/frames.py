"""Python frames that a repeated call takes inside ttmesh: what a call costs besides torch, on any machine the same."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import torch
from bench_rows import BenchRow, note

import ttmesh
import ttmesh.ttnn as ttnn

Call = Callable[[], object]
HOME = str(Path(ttmesh.__file__).parent)
GENERATED = "<ttmesh"  # code that ttmesh compiles itself
LIMITS = {
    "add(a, b)": 12,
    "all_reduce(x, cluster_axis=1)": 25,
    "all_reduce(input_tensor=x, cluster_axis=1)": 25,
    "from_torch(t, device=m)": 20,
    "to_torch(x, mesh_composer=c)": 60,
    "to_torch(one chip's tensor)": 20,
}


def frames(call: Call) -> list[CodeType]:
    """The functions of ttmesh that a call enters, in order; it was called before, so that it is a repeated one."""
    entered: list[CodeType] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith((HOME, GENERATED)):
            entered.append(frame.f_code)

    for _ in range(3):
        call()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def calls(mesh: ttnn.MeshDevice) -> dict[str, Call]:
    """The calls of the table, on a mesh with a fabric."""
    values = torch.rand(1, 1, 32, 64)
    options = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT, "device": mesh}
    a, b = (ttnn.from_torch(values, **options) for _ in range(2))
    x = ttnn.from_torch(values, **options, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=3))
    composer = ttnn.ConcatMeshToTensor(mesh, dim=3)
    one = ttnn.get_device_tensors(x)[0]
    return {
        "add(a, b)": lambda: ttnn.add(a, b),
        "all_reduce(x, cluster_axis=1)": lambda: ttnn.all_reduce(x, cluster_axis=1),
        "all_reduce(input_tensor=x, cluster_axis=1)": lambda: ttnn.all_reduce(input_tensor=x, cluster_axis=1),
        "from_torch(t, device=m)": lambda: ttnn.from_torch(values, device=mesh),
        "to_torch(x, mesh_composer=c)": lambda: ttnn.to_torch(x, mesh_composer=composer),
        "to_torch(one chip's tensor)": lambda: ttnn.to_torch(one),
    }


def main() -> None:
    shown = set(sys.argv[1:])  # numbers of rows whose frames are listed
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    for row, (name, call) in enumerate(calls(mesh).items(), 1):
        entered = frames(call)
        print(f"{row}  {name:45} {len(entered):4} frames, at most {LIMITS[name]}")
        limit = float(LIMITS[name])
        note(BenchRow(name, "frames", len(entered), limit=limit, limit_name="promised", limit_aim=1.0))
        for code in entered if str(row) in shown else ():
            print(f"      {code.co_filename.removeprefix(HOME + '/')}:{code.co_firstlineno} {code.co_name}")
    ttnn.close_mesh_device(mesh)


if __name__ == "__main__":
    main()
