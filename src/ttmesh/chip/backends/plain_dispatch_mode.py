"""A torch dispatch mode that does not load torch's compiler."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class PlainDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode without torch's decorator for compiled frames, which would import the compiler at the first call."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
