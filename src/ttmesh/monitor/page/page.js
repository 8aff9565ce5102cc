"use strict";
// Draws what monitor/web_*.py computed. The page itself knows what its user chose: a pool, a device, a window, a theme.
const $ = (id) => document.getElementById(id);
const chosen = { pool: "DRAM", chip: "", window: "", theme: null };
let view = null, device = null, deviceText = "", history_ = null, timer = null;  // the latest of each
const token = encodeURIComponent(new URLSearchParams(location.search).get("token") || "");

// Names come from other people's processes: they are only ever set as text.
function make(tag, attributes = {}, ...children) {
  const element = tag === "svg" || tag === "path"
    ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name.startsWith("on")) element[name] = value;
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const number = (text) => make("td", { class: "number", text });
const cell = (text) => make("td", { text });
const key = (colour) => make("i", { class: "key", style: { "--colour": colour } });

function drawBar(bar) {
  return make("div", { class: "bar" },
    ...bar.segments.map((one) => make("i", { style: { "--percent": `${one.percent}%`, "--colour": one.colour }, title: one.tooltip })),
    ...(bar.peak ? [make("i", { class: "peak", style: { "--percent": `${bar.peak}%` }, title: "peak" })] : []));
}

function drawMeter(bar) {
  const of = bar.capacity ? ` of ${bar.capacity}` : "";
  return make("div", { class: "meter", title: `${bar.pool} ${bar.used}${of}` }, make("span", { class: "pool", text: bar.pool }), drawBar(bar),
    make("span", { class: `percent ${bar.level}`, text: bar.percent || bar.used }), make("span", { class: "amount", text: bar.used }, make("span", { class: "of", text: of })));
}

function drawChip(chip) {
  return make("button", {
    type: "button", class: "chip", title: chip.tooltip, "data-key": chip.key, "data-find": chip.find,
    "data-row": chip.row, "data-column": chip.column, "aria-pressed": chip.key === chosen.chip,
    style: { "--row": chip.row, "--column": chip.column, "--shade": `${chip.shades[chosen.pool]}%` },
    onclick: () => choose(chip.key === chosen.chip ? "" : chip.key), onkeydown: moveFocus,
  }, make("span", { class: "name" }, make("b", { text: chip.title }), ...(chip.is_coordinator ? [make("span", { class: "star", text: "★", title: "coordinator" })] : []),
    make("small", { text: chip.place })), ...chip.bars.map(drawMeter));
}

function drawGroup(group) {
  const gap = group.density === "compact" ? "9px" : "14px", edge = group.has_stubs ? gap : "0";
  const tracks = (count, size) => `${edge} repeat(${count - 1}, ${size} ${gap}) ${size} ${edge}`;
  const columns = group.columns === 1 ? `${edge} 1fr ${edge}` : tracks(group.columns, "minmax(0, 1fr)");
  const rows = group.rows === 1 ? `${edge} auto ${edge}` : tracks(group.rows, "auto");
  return make("div", { class: "group" },
    make("h2", {}, make("span", { text: group.title }), make("small", { text: group.facts })),
    make("div", {
      class: `grid ${group.density === "compact" ? "" : "wide-grid"}`,
      style: { "grid-template-columns": columns, "grid-template-rows": rows },
    }, ...group.links.map((link) => make("i", {
      class: `link ${link.direction} ${link.is_wrap ? "wrap" : ""}`, title: link.tooltip,
      style: { "--row": link.row, "--column": link.column, "--level": link.level },
    })), ...group.chips.map(drawChip)));
}

// A click is lost where anything under the mouse is replaced between pressing and releasing, so elements that are shown stay and take what changed.
function update(shown, made) {
  if (shown.nodeType === Node.TEXT_NODE) { if (shown.data !== made.data) shown.data = made.data; return; }
  for (const { name, value } of made.attributes) if (name !== "style" && shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  for (const name of shown.getAttributeNames()) if (!["style", "open"].includes(name) && !made.hasAttribute(name)) shown.removeAttribute(name);
  if (shown.style.cssText !== made.style.cssText) shown.style.cssText = made.style.cssText;  // the policy refuses the attribute
  for (const handler of ["onclick", "onkeydown", "onmouseenter", "onmouseleave"]) shown[handler] = made[handler];
  updateChildren(shown, ...made.childNodes);
}

// Where the page moves under a mouse that rests, the browser sees the press on one element and the release on another, and calls
// that no click of either. It is a click of the one that was pressed; a mouse that was dragged away still takes it back.
let pressed = null;
document.addEventListener("pointerdown", ({ target, clientX, clientY }) => {
  pressed = { target: target.closest("button, summary"), clientX, clientY };
}, true);
document.addEventListener("click", (event) => {
  const { target, clientX, clientY } = pressed || {};
  pressed = null;
  if (!target || !event.detail || event.target.closest("button, summary") === target) return;  // detail 0: a key, or the call below
  if ((event.clientX - clientX) ** 2 + (event.clientY - clientY) ** 2 > 16) return;  // further than 4 pixels
  event.preventDefault();
  event.stopPropagation();
  target.click();
}, true);

const kindOf = (node) => [node.nodeName, node.dataset?.key, node.dataset?.site].join(" ");

function updateChildren(parent, ...made) {
  const shown = [...parent.childNodes];
  made.forEach((fresh, i) => {
    if (!shown[i]) parent.append(fresh);
    else if (kindOf(shown[i]) === kindOf(fresh)) update(shown[i], fresh);
    else shown[i].replaceWith(fresh);
  });
  shown.slice(made.length).forEach((old) => old.remove());
}

function drawGroups() {
  const pool = view.pools.find((one) => one.name === chosen.pool);
  $("groups").style.setProperty("--pool", pool.colour);
  $("pool").textContent = pool.name;
  updateChildren($("groups"), ...view.groups.map(drawGroup));
  updateChildren($("legend"), ...view.legend.map((entry) => make("li", {}, key(entry.colour), entry.name)));
  $("nothing").hidden = !view.nothing;
  $("nothing").textContent = view.nothing;
}

function drawTables() {
  updateChildren($("processes").tBodies[0], ...view.processes.map((row) => make("tr", { "data-find": row.find },
    number(row.pid), cell(row.devices), cell(row.meshes), number(row.dram), number(row.l1), number(row.circular_buffers),
    number(row.buffers), cell(row.mark), make("td", { class: "long", text: row.name }))));
  $("traffic").hidden = !view.links.length && !view.host_traffic;
  $("links").hidden = !view.links.length;
  $("host-traffic").textContent = view.host_traffic;
  updateChildren($("links").tBodies[0], ...view.links.map((row) => make("tr", {},
    cell(`${row.system} ${row.name}`), number(row.sent), number(row.received),
    make("td", { class: "share" }, make("div", { class: "bar" }, make("i", { style: { "--percent": `${row.percent}%`, "--colour": "var(--busy)" } }))))));
  $("leaks").hidden = !view.leaks.lost.length && !view.leaks.at_close.length;
  $("leaks-note").textContent = view.leaks.note;
  drawLeaks("lost", view.leaks.lost, view.leaks.lost_caption);
  drawLeaks("at-close", view.leaks.at_close, view.leaks.at_close_caption);
}

function drawLeaks(id, rows, caption) {
  $(`${id}-caption`).hidden = $(id).hidden = !rows.length;
  $(`${id}-caption`).textContent = caption;
  updateChildren($(id).tBodies[0], ...rows.map((row) => make("tr", { "data-find": row.find, title: row.stack },
    number(row.size), make("td", {}, key(row.colour), row.memory_class), number(row.buffers), number(row.times), cell(row.label),
    make("td", { class: "long", text: row.site }), make("td", { class: "long faint", text: row.program }))));
}

function drawChart(chart) {
  return make("div", { class: "chart" },
    make("div", { class: "chart-title" }, make("b", { text: chart.title }),
      ...chart.lines.map((line) => make("span", {}, key(line.colour), line.name, make("b", { text: line.latest })))),
    make("div", { class: "plot" },
      ...chart.time_ticks.map((tick) => make("span", { class: "time", style: { "--percent": `${tick.percent}%` }, text: tick.text })),
      ...chart.value_ticks.map((tick) => make("div", { class: "value", style: { "--percent": `${tick.percent}%` } }, make("span", { text: tick.text }))),
      make("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none" },
        ...chart.lines.map((line) => make("path", { class: "band", d: line.band, style: { fill: line.colour } })),
        ...chart.lines.map((line) => make("path", { d: line.path, style: { stroke: line.colour } }))),
      ...chart.moments.map((moment) => make("div", {
        class: "moment", style: { "--percent": `${moment.percent}%`, "--width": `${chart.moment_percent}%` },
        onmouseenter: (event) => { event.target.parentElement.lastChild.textContent = moment.text; },
        onmouseleave: (event) => { event.target.parentElement.lastChild.textContent = ""; },
      })), make("div", { class: "reading" })));
}

function drawHistory() {
  if (!history_) return;
  updateChildren($("charts"), ...history_.charts.map(drawChart), make("p", { class: "faint", text: history_.note }));
}

function drawPool(pool) {
  return [make("h3", { text: `${pool.bar.pool}  ${pool.bar.used}${pool.bar.capacity ? ` of ${pool.bar.capacity}` : ""}  ${pool.bar.percent}` }), drawBar(pool.bar),
    make("div", { class: "classes" }, ...pool.classes.map((one) => make("span", {}, key(one.colour), `${one.name} ${one.used}`)), make("span", { class: "faint", text: pool.facts })),
    ...(pool.map_caption ? [make("div", { class: "map" }, ...pool.cells.map((one) => make("i", { title: one.name, style: one.colour ? { background: one.colour } : {} }))),
      make("small", { text: pool.map_caption })] : [])];
}

function drawSite(site) {
  return make("details", { "data-find": site.find, "data-site": site.find },
    make("summary", {}, make("b", { text: site.size }), make("span", {}, key(site.colour), site.memory_class), make("small", { text: site.count }),
      make("span", { class: "where", title: site.stack, text: `${site.label}  ${site.site}` })),
    make("pre", { text: site.stack }),
    make("ul", {}, ...site.buffers.map((row) => make("li", { text: `${row.size} at ${row.address}, ${row.pid}` })), ...(site.more ? [make("li", { text: site.more })] : [])));
}

function drawDevice() {
  const is_open = Boolean(chosen.chip);
  $("side").classList.toggle("open", is_open);
  $("close").hidden = !is_open;
  $("device").hidden = !device;
  $("side-title").textContent = device ? device.title : is_open ? (deviceText === "null" ? "Not open" : "…") : "History";
  $("facts").textContent = device ? device.facts : "";
  if (!device) return;
  const opened = new Set([...$("device").querySelectorAll("details[open]")].map((one) => one.dataset.site));
  updateChildren($("device"), ...device.pools.flatMap(drawPool),
    make("h3", { text: "Buffers by call site" }), ...device.sites.map(drawSite), make("small", { text: device.more }),
    ...(device.neighbours.length ? [make("h3", { text: "Links" }), make("table", { id: "neighbours" }, make("tbody", {}, ...device.neighbours.map((row) => make("tr", {},
      cell(row.name), cell(row.links), number(`→ ${row.sent}`), number(`← ${row.received}`)))))] : []));
  $("device").querySelectorAll("details").forEach((one) => { one.open = opened.has(one.dataset.site); });
}

function draw() {
  if (!view) return;
  const clock = new Date(1000 * view.time_s).toLocaleTimeString();  // only the browser knows the reader's time zone
  $("summary").textContent = `${clock}  ${view.summary}`;
  $("notes").hidden = !view.notes;
  $("notes").textContent = view.notes;
  if (!$("windows").children.length) $("windows").append(...Object.entries(view.windows).map(([name, seconds]) => make("button", {
    type: "button", text: name, "data-window": seconds, onclick: () => { chosen.window = String(seconds); remember(); readHistory(); draw(); },
  })));
  for (const button of $("windows").children) button.setAttribute("aria-pressed", button.dataset.window === chosen.window);
  drawGroups();
  drawTables();
  if (!device) drawDevice();
  search();
}

function search() {
  const text = $("search").value.toLowerCase();
  document.querySelectorAll("[data-find]").forEach((one) => one.classList.toggle("miss", !one.dataset.find.includes(text)));
}

const splitKey = () => { const [host, system, id] = chosen.chip.split("/"); return { host, system, id }; };
const query = (values) => `${new URLSearchParams(values)}&token=${token}`;

async function readDevice() {
  if (!chosen.chip) return;
  const asked = chosen.chip, { host, system, id } = splitKey();
  const reply = await fetch(`page/devices/${id}?${query({ host, system })}`);
  const text = reply.ok ? await reply.text() : "";
  if (chosen.chip !== asked || !text || text === deviceText) return;  // closed, another one chosen, or the same
  device = JSON.parse(text);
  deviceText = text;
  drawDevice();
  search();
}

async function readHistory() {
  clearTimeout(timer);
  const asked = chosen.chip + chosen.window, values = { window: chosen.window };
  if (chosen.chip) { const { host, system, id } = splitKey(); Object.assign(values, { host, system, device: id }); }
  const reply = await fetch(`page/history?${query(values)}`).catch(() => null);
  const found = reply && reply.ok ? await reply.json() : history_;
  if (chosen.chip + chosen.window !== asked) return;
  history_ = found;
  drawHistory();
  timer = setTimeout(readHistory, history_ ? history_.refresh_ms : 2000);
}

function choose(chip) {
  chosen.chip = chip;
  device = null;
  deviceText = "";
  remember();
  draw();
  readDevice();
  readHistory();
}

// What is chosen is in the address, so that it can be sent to somebody or come back after a reload.
function remember() {
  const kept = new URLSearchParams();
  if (chosen.chip) kept.set("chip", chosen.chip);
  if (chosen.pool !== "DRAM") kept.set("pool", chosen.pool);
  if (chosen.window !== "86400") kept.set("window", chosen.window);
  if ($("search").value) kept.set("search", $("search").value);
  if (`#${kept}` !== location.hash && (location.hash || `${kept}`)) history.replaceState(null, "", `#${kept}`);
}

function recall() {
  const kept = new URLSearchParams(location.hash.slice(1));
  chosen.pool = kept.get("pool") === "L1" ? "L1" : "DRAM";
  chosen.window = kept.get("window") || "86400";
  $("search").value = kept.get("search") || "";
  choose(kept.get("chip") || "");
}

function moveFocus(event) {
  const steps = { ArrowLeft: [0, -2], ArrowRight: [0, 2], ArrowUp: [-2, 0], ArrowDown: [2, 0] }[event.key];
  if (!steps) return;
  const { row, column } = event.target.dataset;
  const next = event.target.parentElement.querySelector(`[data-row="${Number(row) + steps[0]}"][data-column="${Number(column) + steps[1]}"]`);
  event.preventDefault();
  if (!next) return;
  next.focus();
  if (chosen.chip) choose(next.dataset.key);
}

function setTheme(theme) {
  chosen.theme = theme;
  document.documentElement.dataset.theme = theme;
}

function nextPool() {
  chosen.pool = chosen.pool === "DRAM" ? "L1" : "DRAM";
  remember();
  draw();
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if (document.activeElement === $("search")) { $("search").value = ""; $("search").blur(); remember(); search(); }
    else choose("");
  } else if (document.activeElement !== $("search") && !event.ctrlKey && !event.metaKey) {
    if (event.key === "/") { event.preventDefault(); $("search").focus(); }
    if (event.key === "p") nextPool();
  }
});
$("search").oninput = () => { remember(); search(); };
$("search").onkeydown = (event) => {
  const found = document.querySelector(".chip:not(.miss)");
  if (event.key !== "Enter" || !found) return;
  event.preventDefault();  // or it would press the button that is focused now
  choose(found.dataset.key);
  found.focus();
};
$("pool").onclick = nextPool;
$("close").onclick = () => choose("");
$("theme").onclick = () => setTheme(chosen.theme === "dark" ? "light" : "dark");
window.addEventListener("hashchange", recall);
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
recall();
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
