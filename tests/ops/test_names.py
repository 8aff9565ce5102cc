"""Names of TT-NN that lead to the same thing."""

from __future__ import annotations

import pytest

import ttmesh.ttnn as ttnn


@pytest.mark.parametrize("name", ["add", "conv2d", "to_memory_config", "reallocate", "max_pool2d", "linear"])
def test_the_quasar_form_of_an_operation_is_the_operation(name: str) -> None:
    assert getattr(ttnn.experimental.quasar, name) is getattr(ttnn, name)


def test_quasar_forms_of_experimental_operations_are_those() -> None:
    assert ttnn.experimental.quasar.padded_slice is ttnn.experimental.padded_slice


def test_a_name_that_is_nowhere_says_so() -> None:
    with pytest.raises(AttributeError, match=r"ttnn\.experimental\.quasar\.conv9d is not emulated by ttmesh"):
        ttnn.experimental.quasar.conv9d  # noqa: B018


def test_compiled_modules_hold_what_the_public_ones_show() -> None:
    inner = ttnn._ttnn.operations.experimental

    assert inner.ccl_experimental.GlobalSemaphoreArg is ttnn.GlobalSemaphore
    assert inner.rotary_embedding_llama is ttnn.experimental.rotary_embedding_llama
