"""ttnn.graph_tracer_utils: the printed arguments of a captured graph as JSON."""

from __future__ import annotations

import re
from typing import Any

from ttmesh.ops.graph.graph_queries import Graph

TOKEN = re.compile(r"\s*(?:(?P<text>[^\s\[\](){},=]+)|(?P<sign>[\[\](){},=]))")
CLOSING = {"(": ")", "[": "]", "{": "}"}


class GraphTracerUtils:
    """Arguments such as `MemoryConfig(memory_layout=…)` as nested dictionaries."""

    @staticmethod
    def serialize_graph(captured_graph: Graph) -> dict[str, list[dict[str, Any]]]:
        """Every node that has arguments: its name, and its arguments by position."""
        return {
            "content": [
                GraphTracerUtils.serialize_arguments_to_json(node["params"]["name"], node["arguments"])
                for node in captured_graph
                if node["arguments"]
            ]
        }

    @staticmethod
    def serialize_arguments_to_json(operation_name: str, arguments: list[str]) -> dict[str, Any]:
        """One operation's arguments; what cannot be read as a value is kept as text in `UnparsedElement`."""
        return {
            "operation": operation_name,
            "arguments": [_argument(f"arg{i}", text) for i, text in enumerate(arguments)],
        }


def _argument(name: str, text: str) -> dict[str, Any]:
    tokens = [match["text"] or match["sign"] for match in TOKEN.finditer(text)]
    try:
        value = _value(tokens)
    except IndexError:
        value = None
    if value is None or tokens:
        return {"UnparsedElement": {"error": "not a value", "element_info": text}}
    return {name: text if isinstance(value, (str, int)) else value}


def _value(tokens: list[str]) -> Any:
    """Read one value off the front: a word, a list, or a name with what its brackets hold."""
    word = tokens.pop(0)
    if word in CLOSING:
        return _items(tokens, CLOSING[word])
    if tokens and tokens[0] == "(":
        inner = _items(tokens, CLOSING[tokens.pop(0)])
        return {word: inner[0] if isinstance(inner, list) and len(inner) == 1 else inner}
    return int(word) if re.fullmatch(r"-?\d+", word) else word


def _items(tokens: list[str], end: str) -> list[Any] | dict[str, Any]:
    """The items before the closing bracket; a dictionary if every item is `key=value`."""
    items: list[Any] = []
    keys: list[str] = []
    while tokens[0] != end:
        value = _value(tokens)
        if tokens[0] == "=":
            tokens.pop(0)
            keys.append(str(value))
            value = _value(tokens)
            value = next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value
        items.append(value)
        if tokens[0] == ",":
            tokens.pop(0)
    tokens.pop(0)
    return dict(zip(keys, items, strict=True)) if keys and len(keys) == len(items) else items
