"use strict";
// The colours of the classes of memory; names and meaning are those of monitor/view.py.
const COLOURS = {
  DRAM: "#1e90ff", TRACE: "#9370db", SYSTEM_DRAM: "#8a9199", L1: "#2eaf4d", L1_SMALL: "#008b8b", CB: "#ff9f1a",
  KERNEL: "#ff5fa2", SYSTEM_L1: "#8a9199",
};
const UNITS = ["B", "KB", "MB", "GB", "TB"];
const $ = (id) => document.getElementById(id);
const wish = { pool: "DRAM", device: null, theme: null };
let latest = null;
const token = encodeURIComponent(new URLSearchParams(location.search).get("token") || "");

function size(bytes) {
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit < UNITS.length - 1) { bytes /= 1024; unit += 1; }
  return `${bytes.toFixed(unit > 1 ? 2 : 0)} ${UNITS[unit]}`;
}

// Names come from other people's processes: they are only ever set as text.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") Object.assign(element.style, value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const className = (kind) => (kind.startsWith("SYSTEM") ? "SYSTEM" : kind);
const barOf = (device, pool) => device.bars.find((bar) => bar.pool === pool);
const nameOf = (device) => `${device.physical_id}${device.is_remote ? "R" : ""}${device.host ? "@" + device.host : ""}`;
const keyOf = (device) => `${device.host}/${device.physical_id}`;

const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;

// Five steps or so in halves and doubles of 1024s, as every other size on the page counts.
function ticks(most) {
  let step = 1;
  while (most / step > 5) step *= 2;
  return Array.from({ length: Math.floor(most / step) + 2 }, (_, i) => i * step);
}

function ranges(ids) {
  const parts = [];
  for (const id of ids) {
    const last = parts[parts.length - 1];
    if (last && id === last[1] + 1) last[1] = id; else parts.push([id, id]);
  }
  return parts.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",");
}

function drawBar(bar) {
  const parts = bar.segments.filter((part) => part.used_bytes).map((part) => make("i", {
    style: { width: `${100 * part.share}%`, background: COLOURS[part.memory_class] },
    title: `${className(part.memory_class)} ${size(part.used_bytes)} in ${counted(part.buffers, "buffer")}, peak ${size(part.peak_bytes)}`,
  }));
  return make("div", { className: "bar" }, ...parts);
}

function drawChip(device) {
  const lines = device.bars.flatMap((bar) => {
    const share = bar.capacity_bytes ? ` ${(100 * bar.share).toFixed(1)}%` : "";
    return [make("small", {}, `${bar.pool} ${size(bar.used_bytes)}${share}`), drawBar(bar)];
  });
  const place = device.coord.length ? ` (${device.coord.join(", ")})` : "";
  const names = ["chip", device.is_coordinator ? "coordinator" : "", wish.device === keyOf(device) ? "chosen" : ""];
  const share = barOf(device, wish.pool).share;
  return make("button", {
    type: "button", className: names.join(" ").trim(), title: `${device.arch}, logical ${device.logical_id}`,
    style: { background: `color-mix(in srgb, ${COLOURS[wish.pool]} ${Math.round(70 * share)}%, var(--ground))` },
    onclick: () => { choose(wish.device === keyOf(device) ? null : keyOf(device)); },
  }, make("b", {}, `${nameOf(device)}${place}`), ...lines);
}

// A button that is replaced between pressing and releasing the mouse is not clicked, so it stays and gets a new face.
function renew(chip, made) {
  chip.className = made.className;
  chip.title = made.title;
  chip.style.background = made.style.background;
  chip.onclick = made.onclick;
  chip.replaceChildren(...made.childNodes);
}

function drawGrid(devices) {
  const placed = devices.every((device) => device.coord.length === 2);
  const inOrder = [...devices].sort((a, b) => (placed ? a.coord[0] - b.coord[0] || a.coord[1] - b.coord[1] : 0));
  const columns = placed ? Math.max(1, ...devices.map((device) => device.coord[1] + 1)) : 4;
  $("grid").style.gridTemplateColumns = `repeat(${Math.min(columns, 8)}, minmax(7rem, 1fr))`;
  const made = inOrder.map(drawChip), shown = $("grid").children;
  if (shown.length === made.length) made.forEach((chip, i) => renew(shown[i], chip));
  else $("grid").replaceChildren(...made);
  const seen = new Set(devices.flatMap((device) => device.bars.flatMap((bar) => bar.segments.map((s) => s.memory_class))));
  $("legend").replaceChildren(...[...seen].map((kind) => make("li", {},
    make("i", { style: { background: COLOURS[kind] } }), className(kind))));
}

function drawProcesses(processes) {
  const pool = (process, kinds) => kinds.reduce((sum, kind) => sum + (process.used_bytes[kind] || 0), 0);
  const rows = processes.map((process) => {
    const dram = pool(process, ["DRAM", "TRACE", "SYSTEM_DRAM"]);
    const l1 = pool(process, ["L1", "L1_SMALL", "CB", "KERNEL", "SYSTEM_L1"]);
    const meshes = process.meshes.map((shape) => shape.join("x")).join(" ");
    const number = (text) => make("td", { className: "number" }, String(text));
    return make("tr", {}, number(process.pid + (process.host ? "@" + process.host : "")),
      make("td", {}, ranges(process.devices)), make("td", {}, meshes), number(size(dram)), number(size(l1)),
      number(size(process.used_bytes.CB || 0)), number(process.buffers), number(process.missed),
      make("td", {}, process.last_mark), make("td", {}, process.name));
  });
  $("processes").tBodies[0].replaceChildren(...rows);
  $("nothing").hidden = rows.length > 0;
}

function drawTimeline(view) {
  const looks = getComputedStyle(document.documentElement);
  const ink = looks.getPropertyValue("--ink"), line = looks.getPropertyValue("--line");
  const shown = view.devices.filter((device) => !wish.device || keyOf(device) === wish.device);
  const series = shown.flatMap((device) => (wish.device ? ["DRAM", "L1"] : [wish.pool]).map((pool) => {
    const trend = barOf(device, pool).trend;
    const name = wish.device ? pool : `device ${nameOf(device)}`;
    return { x: trend.map((_, i) => i - trend.length + 1), y: trend, name, mode: "lines", line: { shape: "hv" } };
  }));
  const marks = ticks(Math.max(1024, ...series.flatMap((one) => one.y)));
  const axis = { color: ink, gridcolor: line, zerolinecolor: line };
  Plotly.react("timeline", series, {
    margin: { l: 75, r: 10, t: 10, b: 40 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent",
    font: { color: ink }, showlegend: true, uirevision: "kept",
    xaxis: { ...axis, title: { text: "seconds" }, range: [-60, 0] },
    yaxis: { ...axis, rangemode: "tozero", tickvals: marks, ticktext: marks.map(size) },
  }, { displayModeBar: false, responsive: true });
}

function choose(key) {
  wish.device = key;
  $("device").hidden = key === null;
  draw();
  showDevice();
}

async function showDevice() {
  if (!wish.device) return;
  const asked = wish.device, at = asked.lastIndexOf("/");
  const host = asked.slice(0, at), id = asked.slice(at + 1);
  const reply = await fetch(`api/devices/${id}?host=${encodeURIComponent(host)}&token=${token}`);
  if (!reply.ok) return;
  const found = await reply.json();
  if (wish.device !== asked) return;  // closed, or another one chosen meanwhile
  $("device").hidden = false;
  $("device-name").textContent = `Device ${nameOf(found.device)} ${found.device.arch}${found.device.is_coordinator ? " ★ coordinator" : ""}`;
  $("maps").replaceChildren(...found.maps.flatMap((map) => [
    make("div", {}, `${map.pool} 0x${map.start.toString(16)} … 0x${map.end.toString(16)} of every bank, ${counted(map.holes, "hole")}`),
    make("div", { className: "map" }, ...map.cells.map((kind) => make("i", {
      title: className(kind), style: kind in COLOURS ? { background: COLOURS[kind] } : {},
    }))),
  ]));
  $("buffers").tBodies[0].replaceChildren(...found.buffers.map((buffer) => make("tr", {},
    make("td", { className: "number" }, size(buffer.size_bytes)), make("td", {},
      make("i", { className: "key", style: { background: COLOURS[buffer.buffer_type] } }), buffer.buffer_type),
    make("td", { className: "number" }, `0x${buffer.address.toString(16)}`), make("td", { className: "number" }, String(buffer.pid)),
    make("td", {}, buffer.label), make("td", { title: buffer.site }, buffer.site.split("\n")[0]))));
}

function draw() {
  if (!latest) return;
  const clock = new Date(1000 * latest.time_s).toLocaleTimeString();
  const buffers = latest.devices.reduce((sum, device) => sum + device.buffers, 0);
  const missed = latest.missed ? `, ${latest.missed} missed` : "";
  $("summary").textContent = `${clock}  ${counted(latest.devices.length, "device")}, ${counted(buffers, "buffer")}, `
    + `${counted(latest.processes.length, "process")}, ${counted(latest.records, "record")}${missed}`
    + latest.notes.map((note) => `. ${note}`).join("");
  drawGrid(latest.devices);
  drawProcesses(latest.processes);
  drawTimeline(latest);
}

function setTheme(theme) {
  wish.theme = theme;
  document.documentElement.dataset.theme = theme;
  draw();
}

$("pool").onclick = () => {
  wish.pool = wish.pool === "DRAM" ? "L1" : "DRAM";
  $("pool").textContent = wish.pool;
  draw();
};
$("close").onclick = () => choose(null);
$("theme").onclick = () => setTheme(wish.theme === "dark" ? "light" : "dark");
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
const events = new EventSource(`events?token=${token}`);
events.onmessage = (event) => {
  const view = JSON.parse(event.data);
  $("problem").hidden = !view.problem;
  $("problem").textContent = view.problem || "";
  if (view.problem) return;
  latest = view;
  draw();
  showDevice();
  document.body.dataset.ready = "yes";
};
events.onerror = () => {
  $("problem").hidden = false;
  $("problem").textContent = events.readyState === EventSource.CLOSED
    ? "The page's server refuses: open the whole address that `ttmesh web` printed, with its token."
    : "The page's server does not answer; trying again.";
};
