"""What a tensor answers where it is used as a tensor of torch, a number or a list: what to call instead."""

from __future__ import annotations

from inspect import getattr_static
from typing import Any, NoReturn

import torch

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


class TorchOnly:
    """A name that torch's tensors have and these have not: an error that says what to call."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, tensor: object, owner: type) -> NoReturn:
        hint = TORCH_NAMES.get(self.name, f"ttnn.{self.name}(tensor), or ttnn.to_torch(tensor)")
        raise AttributeError(
            f"{owner.__name__!r} object has no attribute {self.name!r}; "
            f"this is a tensor on chips, not one of torch. Use {hint}.",
            name=self.name,
            obj=tensor,
        )


class TorchMixups:
    """Errors for what works with torch's tensors and not with these. The last base: names that others define win.

    Each name has an object of its own, because a class with `__getattr__` takes longer for every attribute: 3 % of the
    instructions of `ttnn.add`.
    """

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not isinstance(getattr_static(self, name, None), TorchOnly)]

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


for _name in {name for name in dir(torch.Tensor) if not name.startswith("_")} | TORCH_NAMES.keys():
    setattr(TorchMixups, _name, TorchOnly(_name))
