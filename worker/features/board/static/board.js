// Pages work without this script. It polls, draws the large charts, and adds keys.
"use strict";

// --- polling: the page is fetched again with its ETag; an unchanged one is an answer without a body ---
const main = document.getElementById("main");
let tag = null;
async function poll() {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status !== 200) return;
    tag = answer.headers.get("ETag");
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
    if (fresh && fresh.innerHTML !== main.dataset.seen && !main.contains(document.activeElement)) {
      main.dataset.seen = fresh.innerHTML;
      main.replaceChildren(...fresh.childNodes);
      draw();
    }
  } catch {
    // The board is restarting; the next poll finds it.
  }
}
if (main.dataset.poll) setInterval(poll, Number(main.dataset.poll) * 1000);

// --- charts: the small picture of the server becomes one that can be read point by point ---
function draw() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const percent = (_, value) => (value === null ? "–" : `${(100 * value).toFixed(1)} %`);
  for (const figure of document.querySelectorAll("figure.chart[data-points]")) {
    const points = JSON.parse(figure.dataset.points);
    const columns = [0, 1, 2, 3].map((column) => points.map((point) => point[column]));
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line") } };
    const picture = figure.querySelector("svg");
    const plot = new uPlot(
      {
        width: Math.max(200, figure.clientWidth), height: 160,
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
        scales: { y: { range: (_, low, high) => [Math.max(0, low - 0.05), Math.min(1, high + 0.05)] } },
        axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => new Date(1000 * tick).toISOString().slice(5, 10)) }, { ...axis, values: (_, ticks) => ticks.map((tick) => `${Math.round(100 * tick)} %`) }],
        series: [
          { label: "Day" },
          { label: "Share", stroke: colour("--link"), width: 2, value: percent },
          { label: "from", stroke: "transparent", value: percent, points: { show: false } },
          { label: "to", stroke: "transparent", value: percent, points: { show: false } },
        ],
        bands: [{ series: [3, 2], fill: `${colour("--link")}33` }],
      },
      columns, figure,
    );
    // Screen readers keep the description of the picture.
    plot.root.setAttribute("aria-hidden", "true");
    picture.setAttribute("height", "0");
    picture.setAttribute("width", "0");
    delete figure.dataset.points;
  }
}
if (window.uPlot) draw();

// --- keys: those that buttons and links name; j and k go through the rows of a list ---
const rows = document.querySelector("[data-keys=rows]");
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
  if (rows && step) {
    const links = [...rows.querySelectorAll("a.row")];
    const next = links[links.indexOf(document.activeElement) + step];
    if (next) { event.preventDefault(); next.focus(); }
    return;
  }
  const named = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (named) { event.preventDefault(); named.click(); }
});

// --- labels: a selection in the answer becomes the part that decides ---
const form = document.querySelector("form[data-keys=label]");
const answer = document.getElementById("answer");
if (form && answer) {
  document.addEventListener("selectionchange", () => {
    const selection = document.getSelection();
    const text = String(selection).trim();
    if (!text || !answer.contains(selection.anchorNode)) return;
    form.elements.excerpt.value = text.slice(0, 2000);
    form.querySelector("summary").textContent = "Note, with the selected part";
  });
}

// --- evidence: a click on a sentence or on its evidence lights both sides ---
function light() {
  for (const element of document.querySelectorAll(".lit")) element.classList.remove("lit");
  const name = location.hash.slice(1);
  if (!name) return;
  for (const element of document.getElementsByClassName(name)) element.classList.add("lit");
  for (const link of document.querySelectorAll(`a[href="#${CSS.escape(name)}"]`)) link.closest(".s, mark")?.classList.add("lit");
}
addEventListener("hashchange", light);
light();
