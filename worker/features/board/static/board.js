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
