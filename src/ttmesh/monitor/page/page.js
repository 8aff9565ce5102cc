"use strict";
// Draws what monitor/web_view.py computed. The page itself knows what its user chose: a pool, a device, a theme.
const $ = (id) => document.getElementById(id);
const chosen = { pool: "DRAM", chip: null, theme: null };
let view = null, device = null;  // the latest of each
const token = encodeURIComponent(new URLSearchParams(location.search).get("token") || "");

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

const isChosen = (chip) => chosen.chip && chosen.chip.host === chip.host && chosen.chip.physical_id === chip.physical_id;
const number = (text) => make("td", { className: "number" }, text);
const cell = (text) => make("td", {}, text);

function drawBar(bar) {
  return make("div", { className: "bar" }, ...bar.segments.map((segment) => make("i", {
    style: { width: `${segment.percent}%`, background: segment.colour }, title: segment.tooltip,
  })));
}

function drawChip(chip) {
  const names = ["chip", chip.is_coordinator ? "coordinator" : "", isChosen(chip) ? "chosen" : ""];
  return make("button", {
    type: "button", className: names.join(" ").trim(), title: chip.tooltip,
    style: { background: `color-mix(in srgb, ${view.pool_colours[chosen.pool]} ${chip.shades[chosen.pool]}%, var(--ground))` },
    onclick: () => { choose(isChosen(chip) ? null : chip); },
  }, make("b", {}, chip.title), ...chip.bars.flatMap((bar) => [make("small", {}, bar.caption), drawBar(bar)]));
}

// A button that is replaced between pressing and releasing the mouse is not clicked, so it stays and is drawn anew.
function redraw(shown, made) {
  shown.className = made.className;
  shown.title = made.title;
  shown.style.background = made.style.background;
  shown.onclick = made.onclick;
  shown.replaceChildren(...made.childNodes);
}

function drawGrid() {
  $("grid").style.gridTemplateColumns = `repeat(${view.columns}, minmax(7rem, 1fr))`;
  const made = view.chips.map(drawChip), shown = $("grid").children;
  if (shown.length === made.length) made.forEach((chip, i) => redraw(shown[i], chip));
  else $("grid").replaceChildren(...made);
  $("legend").replaceChildren(...view.legend.map((entry) => make("li", {},
    make("i", { style: { background: entry.colour } }), entry.name)));
  $("nothing").hidden = !view.nothing;
  $("nothing").textContent = view.nothing;
}

function drawProcesses() {
  $("processes").tBodies[0].replaceChildren(...view.processes.map((row) => make("tr", {},
    number(row.pid), cell(row.devices), cell(row.meshes), number(row.dram), number(row.l1), number(row.circular_buffers),
    number(row.buffers), number(row.missed), cell(row.mark), cell(row.name))));
}

function drawTimeline() {
  const looks = getComputedStyle(document.documentElement);
  const ink = looks.getPropertyValue("--ink"), line = looks.getPropertyValue("--line");
  const timeline = chosen.chip && device ? device.timeline : view.timelines[chosen.pool];
  const axis = { color: ink, gridcolor: line, zerolinecolor: line };
  Plotly.react("timeline", timeline.series.map((one) => (
    { x: one.seconds, y: one.used_bytes, name: one.name, mode: "lines", line: { shape: "hv" } })), {
    margin: { l: 75, r: 10, t: 10, b: 40 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent",
    font: { color: ink }, showlegend: true, uirevision: "kept",
    xaxis: { ...axis, title: { text: "seconds" }, range: [-60, 0] },
    yaxis: { ...axis, rangemode: "tozero", tickvals: timeline.tick_bytes, ticktext: timeline.tick_texts },
  }, { displayModeBar: false, responsive: true });
}

function drawDevice() {
  $("device").hidden = !device;
  if (!device) return;
  $("device-name").textContent = device.title;
  $("maps").replaceChildren(...device.maps.flatMap((map) => [
    make("div", {}, map.caption),
    make("div", { className: "map" }, ...map.cells.map((one) => make("i", { title: one.name, style: { background: one.colour } }))),
  ]));
  $("buffers").tBodies[0].replaceChildren(...device.buffers.map((row) => make("tr", {},
    number(row.size), make("td", {}, make("i", { className: "key", style: { background: row.colour } }), row.memory_class),
    number(row.address), number(row.pid), cell(row.label), make("td", { title: row.tooltip }, row.site))));
}

function draw() {
  if (!view) return;
  const clock = new Date(1000 * view.time_s).toLocaleTimeString();  // only the browser knows the reader's time zone
  $("summary").textContent = `${clock}  ${view.summary}`;
  drawGrid();
  drawProcesses();
  drawTimeline();
  drawDevice();
}

async function readDevice() {
  if (!chosen.chip) return;
  const asked = chosen.chip;
  const reply = await fetch(`page/devices/${asked.physical_id}?host=${encodeURIComponent(asked.host)}&token=${token}`);
  if (!reply.ok) return;
  const found = await reply.json();
  if (chosen.chip !== asked) return;  // closed, or another one chosen meanwhile
  device = found;
  drawTimeline();
  drawDevice();
}

function choose(chip) {
  chosen.chip = chip;
  device = null;
  draw();
  readDevice();
}

function setTheme(theme) {
  chosen.theme = theme;
  document.documentElement.dataset.theme = theme;
  draw();
}

$("pool").onclick = () => {
  chosen.pool = chosen.pool === "DRAM" ? "L1" : "DRAM";
  $("pool").textContent = chosen.pool;
  draw();
};
$("close").onclick = () => choose(null);
$("theme").onclick = () => setTheme(chosen.theme === "dark" ? "light" : "dark");
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
const events = new EventSource(`events?token=${token}`);
events.onmessage = (event) => {
  const message = JSON.parse(event.data);
  $("problem").hidden = !message.problem;
  $("problem").textContent = message.problem || "";
  if (message.problem) return;
  view = message;
  draw();
  readDevice();
  document.body.dataset.ready = "yes";
};
events.onerror = () => {
  $("problem").hidden = false;
  $("problem").textContent = events.readyState === EventSource.CLOSED
    ? "The page's server refuses: open the whole address that `ttmesh web` printed, with its token."
    : "The page's server does not answer; trying again.";
};
