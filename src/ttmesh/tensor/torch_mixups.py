"""What a tensor answers where it is used as a tensor of torch, a number or a list: what to call instead."""

from __future__ import annotations

import difflib
from typing import Any, NoReturn

# Methods and attributes of torch's tensors -> what does it here.
TORCH_NAMES = {
    "view": "ttnn.reshape(tensor, shape)",
    "T": "ttnn.transpose(tensor, -2, -1)",
    "detach": "the tensor itself: gradients are recorded by ttmesh.nn only",
    "numpy": "ttnn.to_torch(tensor).numpy()",
    "float": "ttnn.typecast(tensor, ttnn.float32)",
    "half": "ttnn.typecast(tensor, ttnn.bfloat16)",
    "bfloat16": "ttnn.typecast(tensor, ttnn.bfloat16)",
    "cuda": "ttnn.to_device(tensor, mesh_device)",
    "size": "tensor.shape",
    "dim": "len(tensor.shape)",
    "ndim": "len(tensor.shape)",
    "numel": "tensor.logical_volume()",
    "contiguous": "the tensor itself",
    "clone": "ttnn.clone(tensor)",
    "backward": "ttmesh.nn's tape (docs/training.md)",
}


class TorchMixups:
    """Errors for what works with torch's tensors and not with these."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        if not name.startswith("_"):
            near = difflib.get_close_matches(name, [n for n in dir(type(self)) if not n.startswith("_")], 2, 0.75)
            hint = TORCH_NAMES.get(name) or (
                " or ".join(near) if near else f"ttnn.{name}(tensor), or ttnn.to_torch(tensor)"
            )
            text += f"; this is a tensor on chips, not one of torch. Use {hint}."
        raise AttributeError(text, name=name, obj=self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        name = getattr(function, "__name__", "function")
        raise TypeError(
            f"torch.{name} got a ttnn.Tensor; expected torch tensors. Call ttnn.{name}, or convert it with ttnn.to_torch."
        )

    def __float__(self) -> float:
        raise TypeError(
            "float() argument must be a string or a real number, not 'Tensor'; tensor.item() gives its value"
        )

    def __int__(self) -> int:
        raise TypeError("int() argument must be a string or a real number, not 'Tensor'; tensor.item() gives its value")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(
            "'Tensor' object does not support item assignment; "
            "use ttnn.where, ttnn.scatter, ttnn.slice_write or ttnn.copy, or change a torch tensor before ttnn.from_torch"
        )

    def __iter__(self) -> Any:
        raise TypeError("a ttnn.Tensor cannot be iterated over; index it or use to_torch()")

    def __len__(self) -> int:
        raise TypeError("object of type 'Tensor' has no len(); use tensor.shape[0], or ttnn.to_torch(tensor) for torch")
