"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const nav = document.querySelector("nav.filters");
  const search = nav.querySelector("input");
  const buttons = all("button", nav);
  const rows = all("#tests tbody tr");

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const pressed = buttons.filter((b) => b.getAttribute("aria-pressed") === "true");
    const verdicts = new Set(pressed.map((b) => b.dataset.filter));
    for (const found of all("[data-verdict]")) {
      const wanted = !verdicts.size || verdicts.has(found.dataset.verdict);
      found.hidden = !(wanted && words.every((word) => found.dataset.search.includes(word)));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    nav.querySelector("output").textContent = shown === rows.length ? "" : `${shown} of ${rows.length} tests`;
  }

  function value(row, column) {
    const cell = row.cells[column];
    const text = (cell ? cell.textContent : "").trim();
    const number = /^[<>+]?\s*-?\d/.test(text) ? parseFloat(text.replace(/^[<>+\s]+/, "")) : NaN;
    return { text, number };
  }

  function compare(a, b) {
    if (!Number.isNaN(a.number) && !Number.isNaN(b.number)) return a.number - b.number;
    return a.text.localeCompare(b.text, "en", { numeric: true });
  }

  function sortable(table) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      const sort = () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const ordered = all("tbody tr", table).map((row) => ({ row, key: value(row, column) }));
        ordered.sort((a, b) => (up ? 1 : -1) * compare(a.key, b.key));
        table.tBodies[0].append(...ordered.map((each) => each.row));
      };
      head.tabIndex = 0;
      head.setAttribute("role", "columnheader button");
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        sort();
      });
    });
  }

  function searched(fold) {
    const input = document.createElement("input");
    input.type = "search";
    input.placeholder = "search requirements";
    input.setAttribute("aria-label", "search requirements");
    input.addEventListener("input", () => {
      const text = input.value.toLowerCase();
      for (const row of all("tbody tr", fold)) row.hidden = !row.textContent.toLowerCase().includes(text);
    });
    fold.querySelector("summary").after(input);
  }

  function reveal() {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    let fold = target.closest("details");
    while (fold) {
      fold.open = true;
      fold = fold.parentElement.closest("details");
    }
    target.scrollIntoView();
  }

  search.addEventListener("input", filter);
  buttons.forEach((button) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    filter();
  }));
  all("table.sortable").forEach(sortable);
  all("details.searched").forEach(searched);
  window.addEventListener("hashchange", reveal);
  window.addEventListener("beforeprint", () => all("details.test").forEach((fold) => { fold.open = true; }));
  nav.hidden = rows.length < 2;
  reveal();
})();
