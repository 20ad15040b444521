(async () => {
  const query = document.querySelector("[data-md-component=search-query]"), found = [];
  const items = () => [...document.querySelectorAll(".md-search-result__item")];
  const ask = async (words, isDone) => {
    query.focus(); query.value = words; query.dispatchEvent(new Event("input", {bubbles: true}));
    query.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
    for (let end = Date.now() + 10000; !isDone() && Date.now() < end; ) await new Promise(go => setTimeout(go, 30));
  };
  for (const question of QUESTIONS) {
    await ask("", () => !items().length);
    await ask(question, () => items().length);
    found.push(items().slice(0, 3).map(item => item.querySelector("a").pathname.slice(1)));
  }
  return found;
})()
