"""Rank bindings from a mesh graph descriptor: a rank per host of every mesh."""

from __future__ import annotations

from pathlib import Path

import pytest

from ttmesh.launch.bindings import LaunchError
from ttmesh.launch.environment import rank_environment
from ttmesh.launch.mesh_graph import GraphMesh, list_meshes, make_bindings, make_mapped_bindings

TWO_MESHES = """
# two meshes, the first over two hosts
mesh_descriptors {
  name: "BIG" arch: WORMHOLE_B0
  device_topology { dims: [ 2, 8 ] dim_types: [ LINE, RING ] }
  host_topology { dims: [ 1, 2 ] }
  channels { count: 2 policy: STRICT }
}
mesh_descriptors { name: "SMALL" device_topology { dims: [2, 4] } host_topology { dims: [1, 1] } }
graph_descriptors {
  name: "G0" type: "FABRIC"
  instances { mesh { mesh_descriptor: "SMALL" mesh_id: 1 } }
  instances { mesh { mesh_descriptor: "BIG" mesh_id: 0 } }
  connections { nodes { mesh { mesh_descriptor: "BIG" mesh_id: 0 } } nodes { mesh { mesh_descriptor: "SMALL" mesh_id: 1 } } }
}
top_level_instance { graph { graph_descriptor: "G0" graph_id: 0 } }
"""


def test_every_host_of_every_mesh_is_a_rank_and_finds_its_system(tmp_path: Path) -> None:
    file = tmp_path / "graph.textproto"
    file.write_text(TWO_MESHES)

    found = make_bindings(file)

    places = [(b.rank, b.mesh_id, b.mesh_host_rank) for b in found.ranks]
    assert places == [(0, 0, 0), (1, 0, 1), (2, 1, 0)]
    environments = [rank_environment(b, found, {}, tmp_path) for b in found.ranks]
    assert [env["TTMESH_SYSTEM"] for env in environments] == ["2x8", "2x8", "2x4"]
    assert environments[0]["TT_MESH_GRAPH_DESC_PATH"] == str(file)
    own = rank_environment(found.ranks[0], found, {"TTMESH_SYSTEM": "galaxy"}, tmp_path)
    assert own["TTMESH_SYSTEM"] == "galaxy"


def test_graphs_inside_graphs_number_their_meshes_on() -> None:
    text = TWO_MESHES.replace('graph_descriptor: "G0" graph_id: 0', 'graph_descriptor: "PAIR" graph_id: 0')
    text += """
    graph_descriptors {
      name: "PAIR"
      instances { graph { graph_descriptor: "G0" graph_id: 0 } }
      instances { graph { graph_descriptor: "G0" graph_id: 1 } }
    }"""

    found = list_meshes(text, "pair")

    assert [mesh.mesh_id for mesh in found] == [0, 1, 2, 3]
    assert found[1] == GraphMesh(1, (2, 8), (1, 2))


def test_a_mapping_makes_a_sub_context_of_every_descriptor(tmp_path: Path) -> None:
    (tmp_path / "graph.textproto").write_text(TWO_MESHES)
    (tmp_path / "map.yaml").write_text(
        "subcontext_id_to_mesh_graph_descriptor: {0: graph.textproto, 1: graph.textproto}"
    )

    found = make_mapped_bindings(tmp_path / "map.yaml")

    assert [(b.rank, b.mesh_id, b.subcontext_id) for b in found.ranks][2:4] == [(2, 1, 0), (3, 0, 1)]
    assert found.global_env["TT_RUN_SUBCONTEXT_SIZES"] == "3,3"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("top_level_instance", "level"), "has no top_level_instance"),
        (('graph_descriptor: "G0"', 'graph_descriptor: "G1"'), "instantiates graph 'G1', which it does not describe"),
        (('name: "SMALL"', 'name: "OTHER"'), "instantiates mesh 'SMALL', which it does not describe"),
        (("dims: [ 1, 2 ]", "dims: [ 1, 3 ]"), r"divides \[2, 8\] devices of mesh 'BIG' over \[1, 3\] hosts"),
        (("graph_id: 0 } }\n", "graph_id: 0 }"), "ends before a '}'"),
        (
            ('instances { mesh { mesh_descriptor: "SMALL" mesh_id: 1 } }', "instances { switch { id: 1 } }"),
            "has switches",
        ),
    ],
)
def test_a_descriptor_that_describes_no_meshes_is_refused(change: tuple[str, str], words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        list_meshes(TWO_MESHES.replace(*change), "graph.textproto")
