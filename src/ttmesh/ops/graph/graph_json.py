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
        """One operation's arguments; text that cannot be parsed becomes an `UnparsedElement`."""
        return {
            "operation": operation_name,
            "arguments": [_parse_argument(f"arg{i}", text) for i, text in enumerate(arguments)],
        }


def _parse_argument(name: str, text: str) -> dict[str, Any]:
    tokens = [match["text"] or match["sign"] for match in TOKEN.finditer(text)]
    try:
        value = _parse_value(tokens)
    except IndexError:
        value = None
    if value is None or tokens:
        return {"UnparsedElement": {"error": "not a value", "element_info": text}}
    is_text = isinstance(value, (str, int)) or text == "{}"
    return {name: text if is_text else value}


def _parse_value(tokens: list[str]) -> Any:
    """Parse the value at the front of the tokens: a token, a list, or a name with arguments in brackets."""
    token = tokens.pop(0)
    if token in CLOSING:
        return _parse_items(tokens, CLOSING[token])
    if tokens and tokens[0] == "(":
        inner = _parse_items(tokens, CLOSING[tokens.pop(0)])
        return {token: inner[0] if isinstance(inner, list) and len(inner) == 1 else inner}
    return int(token) if re.fullmatch(r"-?\d+", token) else token


def _parse_items(tokens: list[str], end: str) -> list[Any] | dict[str, Any]:
    """Parse the items up to the closing bracket; a dictionary if every item is `key=value`."""
    items: list[Any] = []
    keys: list[str] = []
    while tokens[0] != end:
        value = _parse_value(tokens)
        if tokens[0] == "=":
            tokens.pop(0)
            keys.append(str(value))
            value = _parse_value(tokens)
            value = next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value
        items.append(value)
        if tokens[0] == ",":
            tokens.pop(0)
    tokens.pop(0)
    return dict(zip(keys, items, strict=True)) if keys and len(keys) == len(items) else items
