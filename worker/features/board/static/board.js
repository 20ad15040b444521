// Pages work without this script. It polls, and adds keys.
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
    }
  } catch {
    // The board is restarting; the next poll finds it.
  }
}
if (main.dataset.poll) setInterval(poll, Number(main.dataset.poll) * 1000);

// --- keys: 1-2-3 answer, arrows skip and go back; a selection in the answer becomes the excerpt ---
const form = document.querySelector("form[data-keys=label]");
if (form) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    const opinion = { 1: "pass", 2: "fail", 3: "cannot_tell" }[event.key];
    if (opinion) form.requestSubmit(form.querySelector(`button[value=${opinion}]`));
    else if (event.key === "ArrowRight") location.assign(form.dataset.skip);
    else if (event.key === "ArrowLeft" && form.dataset.back) location.assign(form.dataset.back);
  });
  const answer = document.getElementById("answer");
  document.addEventListener("selectionchange", () => {
    const selection = document.getSelection();
    const text = String(selection).trim();
    if (text && answer && answer.contains(selection.anchorNode)) form.elements.excerpt.value = text.slice(0, 2000);
  });
}
const rows = document.querySelector("[data-keys=rows]");
if (rows) {
  document.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (!step || event.target.matches("input, select, textarea")) return;
    const links = [...rows.querySelectorAll("a")];
    const next = links[links.indexOf(document.activeElement) + step];
    if (next) { event.preventDefault(); next.focus(); }
  });
}
