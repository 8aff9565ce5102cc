"""Prints docs/settings.md from the table of settings. python docs/generate/settings_page.py > docs/settings.md"""

from __future__ import annotations

import re

from ttmesh.base.settings import SETTINGS, Setting

HEAD = """\
# Settings

Every environment variable that ttmesh reads. This page is printed from the table in `base/settings.py` by `make pages`.

Set a variable before the program starts. An empty value means the default. A name that starts with `TTMESH_` and is
not in the table is an error when the TT-NN namespace is imported, and so is a value that cannot be used: the error says
what is allowed. `ttmesh info` prints the settings in force.

A program can choose the most used ones itself. `ttmesh.configure` wins over the environment and counts from the next
mesh that is opened:

```python
import ttmesh

ttmesh.configure(system="n300", schedule="adversarial", seed=7, unwritten="poison")
```

| variable | default | allowed | what it chooses |
|---|---|---|---|
"""


def format_settings_page() -> str:
    """The whole page."""
    return HEAD + "".join(_format_row(setting) for setting in SETTINGS)


def _format_row(setting: Setting) -> str:
    cells = (f"`{setting.variable}`", _format_default(setting), _format_allowed(setting), setting.meaning)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def _format_allowed(setting: Setting) -> str:
    choices = re.fullmatch(r"one of \[(.*)\]", setting.allowed)
    return setting.allowed if choices is None else choices[1].replace("'", "`")


def _format_default(setting: Setting) -> str:
    if setting.default is None or setting.default == "":
        return "not set"
    if isinstance(setting.default, bool):
        return "`1`" if setting.default else "`0`"
    return f"`{setting.default:g}`" if isinstance(setting.default, float) else f"`{setting.default}`"


if __name__ == "__main__":
    print(format_settings_page(), end="")
