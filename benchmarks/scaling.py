"""Traffic, memory and time of one training step on 1,024 chips and 128 hosts, by arithmetic; and what would break first.

Two machines are modelled: the chips themselves, with the fabric's measured figures, and ttmesh emulating them with one
rank per host. Nothing is run. `docs/scaling.md` holds the output; a test keeps the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GB = 1e9


@dataclass(frozen=True)
class Model:
    """A dense transformer like Llama-3.1-8B; tokens are per replica and step."""

    params: float = 8.03e9
    layers: int = 32
    hidden: int = 4096
    tokens: int = 4096


@dataclass(frozen=True)
class Machine:
    """Hosts with eight Wormhole chips each; axis 0 goes over hosts (data parallel), axis 1 over a host's chips (tensor).

    Origins: chip memory 12 banks x 1,070,773,184 B (boards.json, t3000); link and hop: tt-metal e4f9f0b's fabric
    goldens, Wormhole ring unicast 8.77 GB/s per link and one-hop ring latency 911 ns;
    one link between hosts per chip is an assumption. Host arithmetic
    and memory bandwidth: measured (two cores). Engine: 16 MiB summed between two network namespaces by MPI over TCP
    on a busy two-core machine, so a lower bound.
    """

    hosts: int = 128
    chips_per_host: int = 8
    chip_bytes: float = 12 * 1_070_773_184
    link_gbs: float = 8.77
    hop_us: float = 0.911
    host_bytes: float = 256 * GB
    host_gflops: float = 430.0
    host_memory_gbs: float = 15.0
    nic_gbs: float = 12.5  # 100 Gbit/s Ethernet, an assumption
    engine_gbs: float = 0.9
    engine_us: float = 40.0  # MPI; gloo 300
    open_files: int = 1024  # the usual soft limit
    store_us_per_sign: float = 238 / 128  # one multi_get of 128 signs of life took 238 µs
    signs_per_s: float = 4.0
    timeout_s: float = 300.0  # TTMESH_TIMEOUT_S


@dataclass(frozen=True)
class Limit:
    """Something finite: what a step needs of it and what there is."""

    name: str
    needed: float
    available: float
    unit: str
    way_out: str

    @property
    def room(self) -> float:
        """How many times more would fit; below 1 it is broken."""
        return self.available / self.needed


def ring_s(size_bytes: float, chips: int, gbs: float, step_us: float) -> float:
    """All-reduce on a ring: reduce-scatter and all-gather, each chips - 1 steps."""
    steps = 2 * (chips - 1)
    return steps / chips * size_bytes / (gbs * GB) + steps * step_us * 1e-6


def chip_memory(model: Model, machine: Machine, *, sharded_optimiser: bool) -> dict[str, float]:
    """Bytes on one chip: bfloat16 weights and gradients, float32 master weights and two moments, kept activations."""
    own = model.params / machine.chips_per_host
    optimiser = 12 * own / (machine.hosts if sharded_optimiser else 1)
    kept = 2 * model.tokens * model.hidden * model.layers  # one bfloat16 tensor per layer, the rest recomputed
    return {"weights": 2 * own, "gradients": 2 * own, "optimiser": optimiser, "activations": kept}


def traffic(model: Model, machine: Machine) -> dict[str, float]:
    """Bytes that one chip sends in one step, on ring all-reduces."""
    tensor = 2 * (machine.chips_per_host - 1) / machine.chips_per_host
    data = 2 * (machine.hosts - 1) / machine.hosts
    activation = 2.0 * model.tokens * model.hidden
    return {
        "tensor parallel (4 all-reduces per layer)": 4 * model.layers * activation * tensor,
        "data parallel (gradients)": 2 * model.params / machine.chips_per_host * data,
    }


def chip_times(model: Model, machine: Machine) -> dict[str, float]:
    """Seconds of communication per step on the chips' own fabric."""
    activation = 2.0 * model.tokens * model.hidden
    gradients = 2 * model.params / machine.chips_per_host
    return {
        "tensor parallel": 4
        * model.layers
        * ring_s(activation, machine.chips_per_host, machine.link_gbs, machine.hop_us),
        "data parallel": ring_s(gradients, machine.hosts, machine.link_gbs, machine.hop_us),
    }


def host_times(model: Model, machine: Machine) -> dict[str, float]:
    """Seconds per step of ttmesh: arithmetic, lane sums in memory, the engine between hosts (bfloat16 as float32)."""
    activation = 2.0 * model.tokens * model.hidden
    lane_sum = (machine.chips_per_host + 1) * activation / (machine.host_memory_gbs * GB)
    gradients_f32 = 4 * model.params
    gbs = min(machine.nic_gbs, machine.engine_gbs)
    return {
        "arithmetic": 6 * model.params * model.tokens / (machine.host_gflops * 1e9),
        "tensor parallel": 4 * model.layers * lane_sum,
        "data parallel": ring_s(gradients_f32, machine.hosts, gbs, machine.engine_us) if machine.hosts > 1 else 0.0,
    }


def limits(model: Model, machine: Machine) -> list[Limit]:
    """Everything finite, the tightest first."""
    plain = sum(chip_memory(model, machine, sharded_optimiser=False).values())
    sharded = sum(chip_memory(model, machine, sharded_optimiser=True).values())
    groups = 4  # torch's own world, ttmesh's, and axis 0 on two queues: gloo connects every pair in each
    reads = machine.hosts * machine.signs_per_s * machine.hosts * machine.store_us_per_sign * 1e-6
    slow = host_times(model, machine)["arithmetic"]
    gathered = 64 * 2**20 * machine.hosts * machine.chips_per_host
    found = [
        Limit(
            "chip memory, every chip with the whole optimiser", plain, machine.chip_bytes, "B", "shard it over axis 0"
        ),
        Limit("chip memory, optimiser sharded over axis 0", sharded, machine.chip_bytes, "B", "more chips per replica"),
        Limit(
            "host memory, the lanes of one rank",
            machine.chips_per_host * sharded,
            machine.host_bytes,
            "B",
            "backend meta",
        ),
        Limit(
            "open files per rank with gloo",
            groups * (machine.hosts - 1) + 64,
            machine.open_files,
            "",
            "mpi, or ulimit -n",
        ),
        Limit("signs of life while an operation is late", reads, 1.0, "cores", "a longer interval"),
        Limit("to_torch on every rank, 64 MiB per chip", gathered, machine.host_bytes, "B", "compose on rank 0"),
        Limit("waiting for a host that is 1.5 times slower", 0.5 * slow, machine.timeout_s, "s", "TTMESH_TIMEOUT_S"),
        Limit("one message, 32-bit counts", 4 * model.params, 2.0**31, "B", "done: sent in pieces of 1 GiB"),
    ]
    return sorted(found, key=lambda limit: limit.room)


def amount(value: float, unit: str) -> str:
    """A number with its unit."""
    if unit == "B":
        return f"{value / GB:.2f} GB"
    return f"{value:.3g} {unit}".strip()


def report() -> str:
    """The tables of docs/scaling.md."""
    model, machine = Model(), Machine()
    lines = ["| one chip holds | whole optimiser | optimiser sharded over 128 hosts |", "|---|--:|--:|"]
    plain, sharded = (chip_memory(model, machine, sharded_optimiser=s) for s in (False, True))
    lines += [f"| {name} | {amount(plain[name], 'B')} | {amount(sharded[name], 'B')} |" for name in plain]
    sums = " | ".join(amount(sum(held.values()), "B") for held in (plain, sharded))
    lines += [f"| sum, of {amount(machine.chip_bytes, 'B')} | {sums} |"]
    lines += ["", "| one chip sends per step | bytes |", "|---|--:|"]
    lines += [f"| {name} | {amount(size, 'B')} |" for name, size in traffic(model, machine).items()]
    columns = ["fabric: tensor", "fabric: data", "ttmesh: arithmetic", "ttmesh: tensor", "ttmesh: data, 0.9 GB/s"]
    lines += ["", f"| hosts | chips | {' | '.join(columns)} | at the NIC's 12.5 GB/s |", "|--:|--:|" + "--:|" * 6]
    for hosts in (1, 2, 16, 128, 1024):
        here = replace(machine, hosts=hosts)
        chips, ours = chip_times(model, here), host_times(model, here)
        quick = host_times(model, replace(here, engine_gbs=here.nic_gbs))
        cells = [*chips.values(), *ours.values(), quick["data parallel"]]
        lines.append(f"| {hosts} | {hosts * 8} | " + " | ".join(f"{cell:.2f} s" for cell in cells) + " |")
    lines += ["", "| limit, tightest first | needed | there is | room | remedy |", "|---|--:|--:|--:|---|"]
    for limit in limits(model, machine):
        needed, available = amount(limit.needed, limit.unit), amount(limit.available, limit.unit)
        lines.append(f"| {limit.name} | {needed} | {available} | {limit.room:.2f}x | {limit.way_out} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
