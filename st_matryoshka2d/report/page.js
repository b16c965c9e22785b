// Texts go in as text, never as HTML: the names of models and tasks are not ours.
const data = JSON.parse(document.getElementById("data").textContent);
const state = { task: Object.keys(data.views[0].tasks)[0], share: data.share };
const charts = [];
const place = (id) => document.getElementById(id);

function made(tag, text = "", attributes = {}) {
  const element = Object.assign(document.createElement(tag), { textContent: text });
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// ---- Rows: the tables stand in the page as columns.

const percent = (value, digits = 1) => (value * 100).toFixed(digits);
const short = (value) => String(Number(value.toPrecision(3)));
const counted = (value) => value.toLocaleString("en");
const hasInterval = (row) => row.relative_low !== null && row.relative_low < row.relative_high;

function rowsOf(view, sizes) {
  const columns = Object.entries(sizes.table);
  return sizes.table.name.map((name, index) => {
    const row = Object.fromEntries(columns.map(([column, values]) => [column, values[index]]));
    row.view = view.name;
    row.id = `${view.name} ${name}`;
    row.percent = row.score === null ? null : row.score * 100;
    row.about = about(row, sizes);
    const lines = Object.entries(row.about).map(([key, value]) => (key === "title" ? value : `${key}: ${value}`));
    row.text = lines.join("; ");
    return row;
  });
}

function about(row, sizes) {
  const known = { title: data.series.length > 1 && row.series ? `${row.name}, ${row.series}` : row.name };
  known[sizes.metric] = row.score === null ? "not scored" : `${percent(row.score, 2)} %`;
  if (row.relative !== null) known[`share of ${sizes.largest}`] = `${percent(row.relative)} %`;
  if (hasInterval(row)) known["95 % interval of the share"] = `${percent(row.relative_low)} to ${percent(row.relative_high)} %`;
  if (row.milliseconds_per_text !== null) known["milliseconds per text"] = short(row.milliseconds_per_text);
  known["bytes per vector"] = counted(row.bytes);
  if (row.parameters !== null) known.parameters = counted(row.parameters);
  return known;
}

// ---- The recommended size: the first whose share, at the lower end of its interval, is enough.

const inDoubt = (row, share) => row.relative_low !== null && row.relative_low < share && share <= row.relative;
const enough = (row, share) => row.relative !== null && row.relative >= share && !inDoubt(row, share);

function choice(sizes) {
  const share = state.share / 100;
  if (!sizes.largest) return {};
  const best = sizes.rows.findIndex((row) => enough(row, share));
  const before = best < 0 ? sizes.rows : sizes.rows.slice(0, best);
  return { best: sizes.rows[best], doubt: before.find((row) => row.relative !== null && inDoubt(row, share)) };
}

function shareOf(row, sizes) {
  if (!hasInterval(row)) return `${percent(row.relative)} %`;
  const ends = `${percent(row.relative_low)} to ${percent(row.relative_high)} %`;
  return `${percent(row.relative)} % (${ends} on ${counted(sizes.examples)} examples)`;
}

function instead(row, full, column, form, unit) {
  const [here, there] = [form(row[column]), form(full[column])];
  const named = `${here} ${here === "1" ? unit.replace("layers", "layer") : unit}`;
  return here === there ? named : `${named} instead of ${there}`;
}

function sentences(sizes) {
  const { best, doubt } = choice(sizes);
  const full = sizes.rows.find((row) => row.name === sizes.largest);
  const lines = [];
  if (best) {
    const timed = best.milliseconds_per_text !== null;
    const time = timed ? ["milliseconds_per_text", short, "ms per text"] : ["num_layers", String, "layers"];
    const cost = `${instead(best, full, ...time)}, ${instead(best, full, "bytes", String, "bytes per vector")}`;
    lines.push(`${best.name}: ${shareOf(best, sizes)} of ${sizes.share_of}, ${cost}`);
  } else if (sizes.largest) {
    lines.push(`No size surely keeps at least ${state.share} %.`);
  }
  const wanted = `at least ${state.share} %`;
  if (doubt) lines.push(`The data cannot tell whether ${doubt.name} has ${wanted}: it has ${shareOf(doubt, sizes)}.`);
  return [...lines, ...sizes.notes];
}

// ---- Charts. Each knows its rows, and a size in focus, which the arrow keys move.

async function draw(figure, spec, rows, name) {
  const isMap = spec === data.charts.heat_map;
  const kind = `chart ${isMap ? "map" : spec.layer[0].encoding.color ? "front" : "front plain"}`;
  const box = made("div", "", { class: kind, tabindex: "0", role: "group" });
  box.setAttribute("aria-label", `${name}. Arrow keys move from size to size.`);
  const details = made("p", "", { class: "details", "aria-live": "polite" });
  figure.append(box, details);
  const options = { mode: "vega-lite", renderer: "svg", actions: false };
  const { view } = await vegaEmbed(box.appendChild(made("div")), spec, options);
  const chart = { view, rows, details, isMap, focused: "" };
  view.addEventListener("click", (_, item) => item?.datum?.about && focusOn(chart, item.datum));
  box.addEventListener("keydown", (event) => move(chart, event));
  box.addEventListener("focus", () => box.matches(":focus-visible") && focusOn(chart, here(chart)));
  box.addEventListener("blur", () => view.signal("focused", "").runAsync());
  charts.push(chart);
}

function focusOn(chart, row) {
  chart.focused = row.id;
  chart.details.textContent = row.text;
  return chart.view.signal("focused", row.id).runAsync();
}

function inOrder(chart) {
  const across = chart.isMap ? (row) => [row.num_layers, row.dim] : (row) => [row[chart.cost], row.score];
  const scored = chart.rows().filter((row) => row.percent !== null);
  return scored.sort((one, other) => across(one)[0] - across(other)[0] || across(one)[1] - across(other)[1]);
}

const here = (chart) => inOrder(chart).find((row) => row.id === chart.focused) ?? inOrder(chart)[0];

function move(chart, event) {
  const rows = inOrder(chart);
  const at = rows.indexOf(here(chart));
  const above = (step) => {
    const column = chart.isMap ? rows.filter((row) => row.dim === rows[at].dim) : rows;
    return column[column.indexOf(rows[at]) + step];
  };
  const to = {
    ArrowRight: () => rows[at + 1],
    ArrowLeft: () => rows[at - 1],
    ArrowUp: () => above(chart.isMap ? -1 : 1), // layers grow downwards, scores upwards
    ArrowDown: () => above(chart.isMap ? 1 : -1),
    Home: () => rows[0],
    End: () => rows.at(-1),
  }[event.key];
  if (!to) return;
  event.preventDefault();
  const row = to();
  if (row) focusOn(chart, row);
}

function update() {
  const shown = data.views.map((view) => view.tasks[state.task]);
  const values = shown.flatMap((sizes) => sizes.rows.map((row) => row.percent).filter((value) => value !== null));
  const low = Math.min(...values);
  const high = Math.max(...values);
  const chosen = shown.map((sizes) => choice(sizes).best?.id).filter(Boolean);
  for (const chart of charts) {
    chart.view.signal("chosen", chosen).data("sizes", chart.rows());
    if (chart.isMap) chart.view.signal("low", low < high ? low : low - 1).signal("high", high);
    chart.view.runAsync();
  }
  tell(chosen);
}

function tell(chosen) {
  const sizes = (view) => view.tasks[state.task];
  place("share-text").textContent = `${state.share} %`;
  place("share").setAttribute("aria-valuetext", `${state.share} percent`);
  place("metric").textContent = `${sizes(data.views[0]).metric}, ${state.task}`;
  place("recommended").replaceChildren(
    ...data.views.flatMap((view) =>
      sentences(sizes(view)).map((line) => made("p", data.views.length > 1 ? `${view.name}: ${line}` : line)),
    ),
  );
  place("tables").replaceChildren(...data.views.map((view) => table(view, sizes(view), chosen)));
}

// ---- Tables

const COLUMNS = {
  size: (row) => row.name,
  score: (row) => (row.score === null ? "" : percent(row.score, 2)),
  share: (row) => (row.relative === null ? "" : `${percent(row.relative)} %`),
  interval: (row) => (hasInterval(row) ? `${percent(row.relative_low)} to ${percent(row.relative_high)} %` : ""),
  "ms per text": (row) => (row.milliseconds_per_text === null ? "" : short(row.milliseconds_per_text)),
  bytes: (row) => counted(row.bytes),
  parameters: (row) => (row.parameters === null ? "" : counted(row.parameters)),
  "": (row, chosen) => (chosen.includes(row.id) ? "recommended" : ""),
};

function table(view, sizes, chosen) {
  const used = Object.entries(COLUMNS).filter(([name, cell]) => !name || sizes.rows.some((row) => cell(row, chosen)));
  const head = made("tr");
  head.append(...used.map(([name]) => made("th", name, { scope: "col" })));
  const body = sizes.rows.map((row) => {
    const line = made("tr", "", chosen.includes(row.id) ? { class: "chosen" } : {});
    line.append(...used.map(([, cell]) => made("td", cell(row, chosen))));
    return line;
  });
  const drawn = made("table");
  drawn.append(made("caption", state.task), head, ...body);
  const scroll = made("div", "", { class: "scroll", tabindex: "0", role: "region" });
  scroll.setAttribute("aria-label", `Sizes of ${view.name || "the model"}`);
  scroll.append(drawn);
  const button = made("button", "Download as CSV, all tasks", { type: "button" });
  button.addEventListener("click", () => download(view));
  const details = made("details");
  details.open = view.open ?? false;
  details.addEventListener("toggle", () => (view.open = details.open));
  details.append(made("summary", `${view.name || "All sizes"}: ${sizes.rows.length} sizes`), button, scroll);
  return details;
}

function csvOf(view) {
  const columns = ["task", ...Object.keys(Object.values(view.tasks)[0].table).filter((name) => name !== "name" && name !== "series")];
  const quoted = (value) => {
    const text = value === null ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = Object.entries(view.tasks).flatMap(([task, sizes]) => sizes.rows.map((row) => ({ ...row, task })));
  return [columns, ...lines.map((row) => columns.map((name) => row[name]))].map((line) => line.map(quoted).join(",")).join("\n") + "\n";
}

function download(view) {
  const address = URL.createObjectURL(new Blob([csvOf(view)], { type: "text/csv" }));
  const name = (view.name || "sizes").replace(/[^\w.-]+/g, "_");
  const link = made("a", "", { href: address, download: `${name}.csv` });
  link.click();
  URL.revokeObjectURL(address);
}

// ---- Start

for (const view of data.views) {
  for (const sizes of Object.values(view.tasks)) sizes.rows = rowsOf(view, sizes);
}
const tasks = Object.keys(data.views[0].tasks);
place("task").append(...tasks.map((name) => made("option", name, { value: name })));
place("task-label").hidden = tasks.length < 2;
place("task").addEventListener("change", (event) => ((state.task = event.target.value), update()));
place("share").value = state.share;
place("share").addEventListener("input", (event) => ((state.share = Number(event.target.value)), update()));
place("controls").addEventListener("submit", (event) => event.preventDefault());
const notes = new Set(data.views.flatMap((view) => view.notes));
place("notes").append(...[...notes].map((note) => made("p", note, { class: "note" })));

const figureIn = (id, title) => {
  const figure = made("figure");
  if (title) figure.append(made("h3", title));
  place(id).append(figure);
  return figure;
};
for (const view of data.views) {
  const rows = () => view.tasks[state.task].rows;
  for (const series of view.series) {
    const own = () => rows().filter((row) => row.series === series);
    await draw(figureIn("maps", series), data.charts.heat_map, own, `Heat map ${series}`);
  }
}
const all = () => data.views.flatMap((view) => view.tasks[state.task].rows);
for (const [chart, cost, title] of [["time", data.time, "Time"], ["bytes", "bytes", "Size of a vector"]]) {
  await draw(figureIn("fronts", title), data.charts[chart], all, `Score against ${cost}`);
  charts.at(-1).cost = cost;
}
update();
document.body.dataset.ready = "yes"; // for tests
