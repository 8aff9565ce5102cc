"""The environment variables of a rank, and which value wins, as in tt-run (tt-metal e4f9f0b)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ttmesh.launch.bindings import Bindings, RankBinding

PASSED_PREFIXES = ("TT_", "ARCH_", "WH_", "TTNN_", "DEEPSEEK_", "MESH_", "TTMESH_")
PASSED_NAMES = ("HOME", "USER", "PATH", "VIRTUAL_ENV", "PYTHONHOME")
# Per rank: one inherited value would give every rank the same devices or the same block of the mesh.
BLOCKED = frozenset(
    {
        "TT_MESH_ID",
        "TT_MESH_HOST_RANK",
        "TT_MESH_GRAPH_DESC_PATH",
        "TT_RUN_ORIGINAL_CWD",
        "TT_RUN_SUBCONTEXT_ID",
        "TT_RUN_SUBCONTEXT_SIZES",
        "TT_METAL_MOCK_CLUSTER_DESC_PATH",
        "TT_VISIBLE_DEVICES",
    }
)
# Values of such names are not put on command lines, which any user of a host can read.
SECRET = re.compile("TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|PRIVATE_KEY", re.IGNORECASE)


def filter_environment(parent: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process on this host inherits: all but those of a single rank."""
    return {name: value for name, value in parent.items() if name not in BLOCKED}


def rank_environment(binding: RankBinding, bindings: Bindings, parent: Mapping[str, str], cwd: Path) -> dict[str, str]:
    """The variables of one rank; later wins: passed through, set here, global_env, env_overrides."""
    env = dict(binding.defaults)
    env |= {k: v for k, v in parent.items() if k.startswith(PASSED_PREFIXES) and k not in BLOCKED}
    env |= {name: parent[name] for name in PASSED_NAMES if parent.get(name)}
    home = parent.get("TT_METAL_HOME", str(cwd))
    cache_root = parent.get("XDG_CACHE_HOME") or str(Path(parent.get("HOME", str(cwd))) / ".cache")
    env |= {
        "TT_MESH_ID": str(binding.mesh_id),
        "TT_METAL_HOME": home,
        "TT_METAL_RUNTIME_ROOT": parent.get("TT_METAL_RUNTIME_ROOT", home),
        # Ranks of one host must not share a cache unless the user says so.
        "TT_METAL_CACHE": parent.get("TT_METAL_CACHE", f"{cache_root}/ttmesh/rank{binding.rank}"),
        "PYTHONPATH": parent.get("PYTHONPATH", str(cwd)),
        "LD_LIBRARY_PATH": parent.get("LD_LIBRARY_PATH", str(cwd / "build" / "lib")),
        "TT_RUN_ORIGINAL_CWD": str(cwd),
        # mpirun gives ranks a terminal of their own, on which progress bars would move; their lines are labelled instead.
        "TERM": "dumb",
        # torch reports a lost store with a C++ stack per rank; the error that names the rank says it better.
        "TORCH_CPP_LOG_LEVEL": parent.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }
    optional = {
        "TT_MESH_GRAPH_DESC_PATH": binding.mesh_graph_desc_path,
        "TT_MESH_HOST_RANK": binding.mesh_host_rank,
        "TT_METAL_MOCK_CLUSTER_DESC_PATH": binding.mock_cluster_desc_path,
        "TT_RUN_SUBCONTEXT_ID": binding.subcontext_id,
    }
    env |= {name: str(value) for name, value in optional.items() if value is not None}
    env |= {name: os.path.expandvars(value) for name, value in bindings.global_env.items()}
    env |= {name: os.path.expandvars(value) for name, value in binding.env_overrides.items()}
    return env


def split_secrets(env: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The variables that may be on a command line, and the others encoded for `launch/rank.py` ("" if none)."""
    secret = {name: value for name, value in env.items() if SECRET.search(name)}
    shown = {name: value for name, value in env.items() if name not in secret}
    return shown, json.dumps(secret).encode().hex() if secret else ""


def hide_secret(argument: str) -> str:
    """NAME=VALUE without the value if the name is that of a secret; any other argument unchanged."""
    name, equals, _ = argument.partition("=")
    return f"{name}=***" if equals and SECRET.search(name) else argument
