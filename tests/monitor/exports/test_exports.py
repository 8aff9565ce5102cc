"""Every export is read back by the program it is for, or by its parser."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from pathlib import Path

import msgspec
import pytest
import torch
import yaml
from fixed_state import CHIPS, GB, MB, NOW, FixedSource
from prometheus_client.parser import text_string_to_metric_families
from tracked import RunningServer, environment, eventually

import ttmesh
from ttmesh import cli, ttnn
from ttmesh.base.errors import MeshError
from ttmesh.base.records import Allocated, Called, ChipFacts, Finished, Freed, Opened, Returned, TensorFacts
from ttmesh.base.signals import signals
from ttmesh.chip.catalogue import load_system
from ttmesh.chip.cluster_descriptor import describe_cluster
from ttmesh.monitor.exports import shared_memory
from ttmesh.monitor.exports.json_csv import to_csv, to_json
from ttmesh.monitor.exports.prometheus import to_prometheus
from ttmesh.monitor.exports.shared_memory import SharedChip, SharedDevice, SharedProcess
from ttmesh.monitor.exports.torch_snapshot import to_torch_snapshot
from ttmesh.monitor.exports.visualizer import record_report, write_live_report
from ttmesh.monitor.source import Source
from ttmesh.monitor.view import Choice
from ttmesh.tracking.address import Address
from ttmesh.tracking.wire import Query, Who

ROOT = Path(__file__).parents[3]
VISUALIZER = shutil.which("ttnn-visualizer", path=f"{ROOT / '.visualizer' / 'bin'}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def source() -> FixedSource:
    return FixedSource()


def buffers_of(source: FixedSource):
    return lambda device: source._answers.buffers(
        Query("buffers", device.physical_id, limit=20_000, system=device.system)
    )


def test_csv_has_a_line_per_device_and_class(source):
    rows = list(csv.DictReader(io.StringIO(to_csv(source.view()))))

    dram = {row["physical_id"]: int(row["used_bytes"]) for row in rows if row["memory_class"] == "DRAM"}
    assert dram == {str(i): 9 * GB + 100 * MB + (50 * MB if i == 0 else 0) for i in range(8)}
    assert {row["physical_id"] for row in rows if row["is_coordinator"] == "1"} == {"4"}


def test_json_and_prometheus_tell_the_same_as_the_view(source):
    view = source.view()
    families = {f.name: f for f in text_string_to_metric_families(to_prometheus(view))}

    told = {(s.labels["device"], s.labels["class"]): s.value for s in families["ttmesh_memory_used_bytes"].samples}
    assert told == {
        (str(d["physical_id"]), s["memory_class"]): s["used_bytes"]
        for d in json.loads(to_json(view))["devices"]
        for bar in d["bars"]
        for s in bar["segments"]
    }
    assert [s.value for s in families["ttmesh_process_missed_records"].samples] == [0.0, 9.0]


def test_shared_memory_files_have_tt_metals_layout():
    device = SharedDevice(
        7, 2, (1, 2, 3, 4, 5), (SharedChip(2, False, (6, 7, 8, 9, 10)),), (SharedProcess(42, (1, 1, 1, 1, 1), "p"),)
    )

    data = shared_memory.pack(device, time_ns=99)

    assert len(data) == 8576
    fields = {0: 3, 8: 99, 32: 7, 40: 2, 48: 1, 80: 5, 88: 2, 96: 6, 136: 0xFFFFFFFF, 856: 42, 864: 1, 904: 99}
    wide = {8, 32, 48, 80, 96, 864, 904}
    assert {at: int.from_bytes(data[at : at + (8 if at in wide else 4)], "little") for at in fields} == fields
    assert data[912:914] == b"p\0"
    assert shared_memory.unpack(data) == device
    assert shared_memory.unpack(data[:100]) is None
    assert shared_memory.unpack(b"\x02" + data[1:]) is None


def test_our_chips_are_written_and_not_read_back_as_real_ones(source, tmp_path):
    paths = shared_memory.write(source.state(), tmp_path)

    first = shared_memory.unpack(paths[0].read_bytes())
    assert len(paths) == 8
    assert first.used == (9 * GB + 150 * MB, 8 * MB, 0, 16 * MB, 4 * MB)
    assert [p.pid for p in first.processes] == [4242, 777]
    assert shared_memory.read(tmp_path) == []


def test_two_files_of_one_device_id_are_two_devices(tmp_path):
    for asic, used in ((0xA1, 100), (0xB2, 7)):
        live = SharedProcess(os.getpid(), (used, 0, 0, 0, 0), "real")
        device = SharedDevice(asic, 0, (used, 0, 0, 0, 0), (), (live,))
        (tmp_path / f"tt_device_{asic}_memory").write_bytes(shared_memory.pack(device, time_ns=1))
    source = Source(Address(path=str(tmp_path / "nobody.sock")), shared=tmp_path)

    view = source.view()

    shown = {device.title: device.bar("DRAM").used_bytes for device in view.devices}
    assert shown == {"0@tt-metal/a1": 100, "0@tt-metal/b2": 7}
    assert {source.detail(device.key).device.title for device in view.devices} == set(shown)
    assert [process.pool_bytes("DRAM") for process in view.processes] == [107]


def test_chips_of_two_systems_are_written_to_files_of_their_own(source, tmp_path):
    facts = ChipFacts(0, 0, (0, 0), "wormhole_b0", 12, GB, 64, MB, False)
    process = source.ledger.join(Who("", 9, 1), "p", 0.0)
    source.ledger.events(process, 0, [Opened(1, None, (1, 1), "n150", (facts,), 0)])

    paths = shared_memory.write(source.state(), tmp_path)

    assert len(set(paths)) == 9
    assert sorted(shared_memory.unpack(path.read_bytes()).device_id for path in paths) == [0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert len(shared_memory.clean(tmp_path)) == 9


def test_metrics_of_two_systems_are_told_apart(source):
    facts = ChipFacts(0, 0, (0, 0), "wormhole_b0", 12, GB, 64, MB, False)
    process = source.ledger.join(Who("", 9, 1), "p", 0.0)
    source.ledger.events(process, 0, [Opened(1, None, (1, 1), "n150", (facts,), 0)])
    families = {f.name: f for f in text_string_to_metric_families(to_prometheus(source.view()))}

    for family in families.values():
        labels = [tuple(sorted(sample.labels.items())) for sample in family.samples]
        assert len(labels) == len(set(labels)), family.name
    assert {s.labels["system"] for s in families["ttmesh_pool_capacity_bytes"].samples} == {"n150", "t3000"}


def test_chips_of_real_tt_metal_are_shown_beside_ours_and_without_a_server(tmp_path):
    live = SharedProcess(os.getpid(), (100, 50, 0, 0, 25), "real")
    dead = SharedProcess(2**22 + 1, (1, 1, 1, 1, 1), "dead")
    device = SharedDevice(1234, 0, (100, 50, 0, 0, 25), (), (live, dead))
    (tmp_path / "tt_device_1234_memory").write_bytes(shared_memory.pack(device, time_ns=1))
    (tmp_path / "tt_device_9_memory").write_bytes(b"torn")
    running = RunningServer(Address(path=str(tmp_path / "s.sock")), quiet=True)
    alone = Source(Address(path=str(tmp_path / "nobody.sock")), shared=tmp_path)
    both = Source(running.address, shared=tmp_path)

    for source in (alone, both):
        view = source.view(Choice(), trends=True)
        (shown,) = view.devices
        assert (shown.title, shown.bar("DRAM").used_bytes, shown.bar("L1").used_bytes) == ("0@tt-metal", 100, 75)
        assert [(p.pid, p.name) for p in view.processes] == [(os.getpid(), "real")]
        assert source.detail(shown.key).buffers.buffers == []
        assert [note.partition(":")[0] for note in view.notes] == (
            ["Only the chips of real tt-metal are shown"] if source is alone else []
        )
        source.close()
    running.stop()


def test_a_server_that_was_named_and_does_not_answer_is_a_failure_beside_real_chips(tmp_path, monkeypatch, capsys):
    device = SharedDevice(1234, 0, (100, 50, 0, 0, 25), (), ())
    (tmp_path / "tt_device_1234_memory").write_bytes(shared_memory.pack(device, time_ns=1))
    monkeypatch.setenv("TTMESH_SHARED_MEMORY", str(tmp_path))
    monkeypatch.delenv("TTMESH_SOCKET", raising=False)
    monkeypatch.setenv("TTMESH_RUNTIME_DIR", str(tmp_path / "run"))

    assert cli.main(["smi", "--socket", str(tmp_path / "nobody.sock")]) == 2
    assert "Only the chips of real tt-metal are shown: the allocation server at" in capsys.readouterr().out
    assert cli.main(["smi"]) == 0  # nobody said that there is one
    assert "0@tt-metal" in capsys.readouterr().out


def test_what_others_put_beside_the_files_is_passed_over(tmp_path):
    good = SharedDevice(1234, 0, (1, 2, 3, 4, 5), (), ())
    (tmp_path / "tt_device_1234_memory").write_bytes(shared_memory.pack(good, time_ns=1))
    os.mkfifo(tmp_path / "tt_device_1_memory")  # opening it for reading would wait for a writer
    with (tmp_path / "tt_device_2_memory").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (tmp_path / "elsewhere").write_bytes(shared_memory.pack(SharedDevice(5, 5, (0,) * 5, (), ()), time_ns=1))
    (tmp_path / "tt_device_3_memory").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "tt_device_4_memory").mkdir()

    assert shared_memory.read(tmp_path) == [good]


@pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("elsewhere"), lambda path: path.mkdir()])
def test_nothing_is_written_into_what_others_put_there(source, tmp_path, put):
    put(tmp_path / f"tt_device_{shared_memory.OURS}_memory")

    with pytest.raises(MeshError, match=r"_memory cannot be written: .*Remove that file, or choose another folder"):
        shared_memory.write(source.state(), tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_torch_draws_the_snapshot(source):
    from torch.cuda import _memory_viz

    snapshot = pickle.loads(to_torch_snapshot(source.state().devices, buffers_of(source)))

    assert len(snapshot["device_traces"]) == 9  # eight chips of one process, one of another
    assert len(snapshot["segments"]) == 18
    assert _memory_viz.segsum(snapshot)  # refuses segments whose blocks do not add up
    assert _memory_viz.trace(snapshot).count("5 entries") == 8
    assert "MemoryViz" in _memory_viz.trace_plot(snapshot)


def recorded(folder: Path) -> Path:
    facts = ChipFacts(3, 0, (0, 0), "wormhole_b0", 12, GB, 64, MB, False, l1_base=1024)
    held = Allocated(1, 1, (3,), "L1", 4096, 64 * 2048, 2048, 64, 2048, "from_torch", NOW)
    config = "MemoryConfig(memory_layout=TensorMemoryLayout::INTERLEAVED,buffer_type=BufferType::L1)"
    first, second = (TensorFacts(n, "Shape([32, 64])", "DataType::BFLOAT16", "Layout::TILE", config) for n in (1, 2))
    with record_report(folder):
        signals.emit(Opened(1, None, (1, 1), "n150", (facts,), NOW))
        signals.emit(held)
        signals.emit_command(Finished(1, 0, 1, "write", NOW, 1000, (), (first,)))
        signals.emit(msgspec.structs.replace(held, buffer_id=2, address=8192, buffer_type="DRAM"))
        signals.emit_command(Called("ttnn.add", (("input_tensor_a", "ttnn.Tensor(...)"), ("dtype", "BFLOAT16"))))
        signals.emit_command(Finished(1, 0, 2, "add's program", NOW, 2000, (first, first), (second,)))
        signals.emit_command(Returned("ttnn.add"))
        signals.emit(Freed(1, 1))
        signals.emit_command(Finished(1, 0, 3, "ttnn.relu", NOW, 3000, (second,), (second,)))
    return folder


def test_a_recorded_report_has_every_live_buffer_at_every_operation(tmp_path):
    database = sqlite3.connect(recorded(tmp_path) / "db.sqlite")

    operations = database.execute("SELECT operation_id, name, duration FROM operations").fetchall()
    live = database.execute("SELECT operation_id, address, buffer_type FROM buffers ORDER BY 1, 2").fetchall()
    database.close()

    names = ["ttnn.to_device", "ttnn.add", "ttnn.deallocate", "ttnn.relu"]
    assert operations == list(zip([1, 2, 3, 4], names, [1e-6, 2e-6, 0.0, 3e-6], strict=True))
    assert live == [(1, 4096, 1), (2, 4096, 1), (2, 8192, 0), (3, 8192, 0), (4, 8192, 0)]
    assert not signals.timing


def test_a_recorded_program_shows_the_tensors_of_every_operation(tmp_path):
    with record_report(tmp_path):
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
        a = ttnn.from_torch(torch.ones(32, 64), layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat16, device=mesh)
        b = ttnn.add(a, a, memory_config=ttnn.L1_MEMORY_CONFIG)
        ttnn.deallocate(a)
        ttnn.relu(ttnn.reshape(b, (1, 64, 32)))
        ttnn.close_mesh_device(mesh)
    database = sqlite3.connect(tmp_path / "db.sqlite")
    put, into = (
        database.execute(
            f"SELECT o.name, t.shape, t.dtype, t.buffer_type FROM {table} x JOIN operations o USING (operation_id) "
            "JOIN tensors t USING (tensor_id) WHERE o.name IN ('ttnn.add', 'ttnn.relu') ORDER BY operation_id"
        ).fetchall()
        for table in ("input_tensors", "output_tensors")
    )
    spread = database.execute("SELECT count(*) FROM device_tensors WHERE tensor_id = 1").fetchone()[0]
    database.close()

    small, tall = "Shape([32, 64])", "Shape([1, 64, 32])"
    assert put == [("ttnn.add", small, "DataType::BFLOAT16", 0)] * 2 + [("ttnn.relu", tall, "DataType::BFLOAT16", 1)]
    assert into == [("ttnn.add", small, "DataType::BFLOAT16", 1), ("ttnn.relu", tall, "DataType::BFLOAT16", 1)]
    assert spread == 2


def test_a_recorded_program_has_ttnns_operations_arguments_and_deallocations(tmp_path):
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    with record_report(tmp_path):
        a = ttnn.from_torch(torch.ones(32, 64), layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat16, device=mesh)
        b = ttnn.mean(a, dim=1, keepdim=True)
        with pytest.raises(ttmesh.MeshError):
            ttnn.matmul(a, a)
        ttnn.deallocate(a)
        ttnn.softmax(b, dim=-1, memory_config=ttnn.L1_MEMORY_CONFIG)
    ttnn.close_mesh_device(mesh)

    database = sqlite3.connect(tmp_path / "db.sqlite")
    names = [name for (name,) in database.execute("SELECT name FROM operations ORDER BY operation_id")]
    given = dict(database.execute("SELECT a.name, value FROM operation_arguments a JOIN operations o "
                                  "USING (operation_id) WHERE o.name = 'ttnn.softmax'").fetchall())  # fmt: skip
    lives = database.execute("SELECT * FROM tensor_lifetime ORDER BY tensor_id").fetchall()
    database.close()
    cluster = yaml.safe_load((tmp_path / "cluster_descriptor.yaml").read_text())

    assert names[:5] == ["ttnn.to_device", "ttnn.mean", "ttnn.matmul", "ttnn.deallocate", "ttnn.softmax"]
    assert given["dim"] == "-1"
    assert given["input_tensor"].startswith("ttnn.Tensor(shape=Shape([32, 1]), dtype=DataType.BFLOAT16")
    assert "L1" in given["memory_config"]
    assert lives[0][:4] == (1, 1, 4, 4), "made by the first operation, freed by the fourth"
    assert cluster["chips_with_mmio"] == [{0: 0}, {1: 1}, {2: 2}, {3: 3}]


@pytest.mark.parametrize("name", ["n150", "n300", "t3000", "galaxy", "p150x4"])
def test_every_link_of_a_system_has_two_ports_of_its_own(name):
    system = load_system(name)

    files = describe_cluster(system)

    links = files["cluster_descriptor.yaml"]["ethernet_connections"]
    ports = [(end["chip"], end["chan"]) for link in links for end in link]
    assert len(links) == sum(system.links.values())
    assert len(set(ports)) == len(ports)
    assert set(files["physical_chip_mesh_coordinate_mapping.yaml"]["chips"]) == set(system.ids)


def test_a_live_report_tells_what_came_in_order(source, tmp_path):
    write_live_report(tmp_path, source.state().devices, buffers_of(source))

    database = sqlite3.connect(tmp_path / "db.sqlite")
    names = [name for (name,) in database.execute("SELECT name FROM operations")]
    last = database.execute("SELECT count(*) FROM buffers WHERE operation_id = ?", (len(names),)).fetchone()[0]
    database.close()

    assert set(names) == {"from_torch", "kv cache", "matmul", "trace", "allocation"}
    assert last == 5 * len(CHIPS) + 1


def test_the_files_of_shared_memory_can_be_removed_and_nothing_else(source, tmp_path):
    shared_memory.write(source.state(), tmp_path)
    real = tmp_path / "tt_device_1234_memory"
    real.write_bytes(b"theirs")

    gone = shared_memory.clean(tmp_path)

    assert len(gone) == len(CHIPS)
    assert list(tmp_path.iterdir()) == [real]


@pytest.mark.skipif(VISUALIZER is None, reason="ttnn-visualizer is not installed")
def test_ttnn_visualizer_opens_the_report(tmp_path):
    report = recorded(tmp_path / "report")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [VISUALIZER, "--profiler-path", str(report), "--port", str(port), "--host", "127.0.0.1"]
    log = tmp_path / "log"
    with log.open("w") as out:
        viewer = subprocess.Popen(command, stdout=out, stderr=out, cwd=tmp_path, start_new_session=True)
    try:
        found = eventually(lambda: re.search(r"instanceId=\w+", log.read_text()), bool, timeout_s=180)

        def get(path: str) -> object:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}?{found[0]}", timeout=180) as reply:
                return json.loads(reply.read())

        def answers() -> bool:
            try:
                return bool(get("operations"))
            except OSError:
                return False

        eventually(answers, bool, timeout_s=180)
        operations = get("operations")
        assert [o["name"] for o in operations] == ["ttnn.to_device", "ttnn.add", "ttnn.deallocate", "ttnn.relu"]
        cluster, mesh = get("cluster-descriptor"), get("mesh-descriptor")
        assert len(cluster["arch"]) == len(cluster["chips"]) == len(mesh["chips"]) == 8
        assert len(cluster["ethernet_connections"]) == 20, "two links between neighbours of a t3000"
        assert mesh["chips"]["4"] == [0, 0]
        added = get("operations/2")
        assert len(added["buffers"]) == 2
        assert [(t["id"], t["shape"], t["device_id"]) for t in added["inputs"]] == [(1, "Shape([32, 64])", 3)] * 2
        assert [(t["id"], t["address"], t["consumers"]) for t in added["outputs"]] == [(2, 8192, [4])]
        assert [(a["name"], a["value"]) for a in added["arguments"]] == [
            ("input_tensor_a", "ttnn.Tensor(...)"),
            ("dtype", "BFLOAT16"),
        ]
        assert [d["device_id"] for d in get("devices")] == [3]
        assert len(get("operation-buffers")) == 4
        assert get("buffers")
        assert [(t["id"], t["dtype"], t["producers"]) for t in get("tensors")] == [
            (1, "DataType::BFLOAT16", [1]),
            (2, "DataType::BFLOAT16", [2, 4]),
        ]
    finally:
        os.killpg(viewer.pid, signal.SIGKILL)  # it starts workers of its own
        viewer.wait(180)


def test_the_command_writes_every_form(address, start, tmp_path):
    running = RunningServer(address, quiet=True)
    program = start()
    program.do("open")
    program.do("allocate 1000 3")
    eventually(lambda: running.server.ledger.records_seen, lambda n: n == 4)

    def export(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ttmesh", "export", *arguments]
        env = environment(TTMESH_SOCKET=address.path)
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)

    assert json.loads(export("json").stdout)["devices"][0]["buffers"] == 3
    assert export("csv").stdout.startswith("time_s,host,physical_id")
    assert "ttmesh_memory_used_bytes" in export("prometheus").stdout
    assert len(export("shm", "-o", str(tmp_path)).stdout.splitlines()) == 8
    assert len(export("shm", "--clean", "-o", str(tmp_path)).stdout.splitlines()) == 8
    assert export("shm", "--clean", "-o", str(tmp_path)).stdout == "There were none.\n"
    files = tmp_path / "files"
    files.mkdir()
    watching = [sys.executable, "-m", "ttmesh", "export", "shm", "-w", "-r", "50", "-o", str(files)]
    watcher = subprocess.Popen(watching, env=environment(TTMESH_SOCKET=address.path))
    eventually(lambda: len(list(files.iterdir())), lambda n: n == 8, timeout_s=180)
    watcher.terminate()
    assert watcher.wait(180) == 0
    assert list(files.iterdir()) == []
    nowhere = export("json", "-o", str(tmp_path / "none" / "x.json"))
    assert (nowhere.returncode, nowhere.stdout) == (2, "")
    assert "x.json cannot be written: No such file or directory; expected a path in a folder" in nowhere.stderr
    assert "cannot be written" in export("shm", "-o", str(tmp_path / "none")).stderr
    written = export("torch", "-o", str(tmp_path / "t.pickle"))
    assert (written.returncode, written.stdout) == (0, f"{tmp_path / 't.pickle'}: 8 devices, 24 buffers\n")
    assert pickle.loads((tmp_path / "t.pickle").read_bytes())["segments"]
    assert export("report", "-o", str(tmp_path / "r")).returncode == 0
    assert (tmp_path / "r" / "db.sqlite").exists()
    refused = export("torch")
    assert (refused.returncode, "torch is not for a terminal; expected -o PATH" in refused.stderr) == (2, True)
    running.stop()
