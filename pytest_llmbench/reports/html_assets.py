"""The style sheet and the script of ``report.html``. Styles: no web fonts; light, dark, paper, and
telephones. Script: filter, sort, open what a link leads to. The page is complete without the script."""

from __future__ import annotations

import base64
import hashlib

SCRIPT = """
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const nav = document.querySelector("nav.filters");
  const search = nav.querySelector("input");
  const buttons = all("button", nav);
  const rows = all("#tests tbody tr");

  function filter() {
    const words = search.value.toLowerCase().split(/\\s+/).filter(Boolean);
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
    const number = /^[<>+]?\\s*-?\\d/.test(text) ? parseFloat(text.replace(/^[<>+\\s]+/, "")) : NaN;
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
"""

_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'"
"""The content security policy of the page: run this script and no other, and load nothing from anywhere."""


STYLE = """
:root { color-scheme: light dark; --ink: #1c232b; --soft: #5b6672; --paper: #ffffff; --panel: #f5f7f9;
  --line: #d9dfe5; --good: #17693a; --good-bg: #dcf3e4; --bad: #a3201f; --bad-bg: #fbe1df;
  --warn: #7a5200; --warn-bg: #fdeec9; --neutral: #4a5560; --neutral-bg: #e8ecf0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ed; --soft: #9aa6b2; --paper: #14181d; --panel: #1c2229; --line: #333c46;
    --good: #8fe0ae; --good-bg: #173a26; --bad: #ffaaa3; --bad-bg: #4a1d1c;
    --warn: #f4cf7b; --warn-bg: #43330f; --neutral: #b6c0ca; --neutral-bg: #2b333c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1.25rem 4rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .8rem;
  padding-bottom: .3rem; border-bottom: 2px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .5rem; overflow-wrap: anywhere; }
h4 { font-size: .95rem; margin: 1.2rem 0 .4rem; color: var(--soft); }
small, .meta { color: var(--soft); }
code, pre { font: .86em/1.45 ui-monospace, "SFMono-Regular", "Liberation Mono", monospace;
  overflow-wrap: anywhere; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem;
  white-space: pre-wrap; margin: .5rem 0; }
.incomplete { background: var(--bad-bg); color: var(--bad); border-radius: 6px; padding: .6rem .8rem;
  font-weight: 600; overflow-wrap: anywhere; }
pre.error, .void { border-left: 4px solid var(--bad); }
.void { padding: .1rem .8rem; overflow-wrap: anywhere; }
pre.evidence { padding: .3rem .5rem; margin: .3rem 0 0; color: var(--soft); font-size: .78em; }
.scroll { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; min-width: min(100%, 36rem); font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem .35rem 0;
  border-bottom: 1px solid var(--line); }
tbody th { font-weight: 400; }
td:first-child > code, tbody th > code { display: inline-block; min-width: 15rem; }
.nowrap { white-space: nowrap; overflow-wrap: normal; }
.wide { font-size: .88em; }
.breaks { display: inline-block; min-width: 9rem; overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: 600; white-space: nowrap; }
dl { display: grid; grid-template-columns: minmax(9rem, 15rem) 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
ul { margin: .3rem 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
.pill { display: inline-block; border-radius: 999px; padding: .05rem .6rem;
  font-size: .82rem; font-weight: 600; white-space: nowrap; }
.good { color: var(--good); background: var(--good-bg); }
.bad { color: var(--bad); background: var(--bad-bg); }
.warn { color: var(--warn); background: var(--warn-bg); }
.neutral { color: var(--neutral); background: var(--neutral-bg); }
.judgement { margin-left: 1rem; color: var(--soft); white-space: nowrap; }
.verdicts { line-height: 2; }
[hidden] { display: none !important; }
a { color: inherit; }
.banner { font-size: 1.25rem; font-weight: 650; border-radius: 8px; padding: .7rem 1rem; margin: .6rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .15rem 1.4rem; color: var(--soft); margin: .4rem 0;
  font-size: .9rem; }
.facts b { color: var(--ink); font-weight: 500; overflow-wrap: anywhere; }
.compliance { margin: .3rem 0; font-size: .9rem; } .compliance.bad { padding: .2rem .6rem;
  border-radius: 6px; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: .8rem;
  margin: 1rem 0; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: .7rem 1rem; min-width: 0; }
.card h2 { border: 0; margin: 0 0 .3rem; padding: 0; font-size: 1rem; overflow-wrap: anywhere; }
.card p { margin: .25rem 0; overflow-wrap: anywhere; } .card pre { margin: .4rem 0 0; font-size: .78em; }
.figure { margin: 0 .4rem; } .distance { font-weight: 650;
  padding: 0 .45rem; border-radius: 999px; margin-right: .5rem; font-size: .9em; }
.cause { color: var(--soft); }
.warned ul { margin: .3rem 0 1rem; padding: .5rem 1rem .5rem 2rem; border-radius: 8px;
  background: var(--warn-bg); color: var(--warn); font-size: .9rem; overflow-wrap: anywhere; }
h2.plain { border: 0; margin: 1.6rem 0 .1rem; font-size: 1.05rem; } h2.plain + p { margin: 0 0 .5rem;
  font-size: .86rem; }
.strip-row { display: grid; grid-template-columns: minmax(0, 22rem) minmax(0, 1fr) minmax(0, 17rem);
  gap: 1rem;
  align-items: center; padding: .2rem 0; border-bottom: 1px solid var(--line); font-size: .88rem; }
.strip-foot { border: 0; } .strip-name, .strip-value { overflow-wrap: anywhere; }
.strip-name code { color: var(--soft); } .strip-value em { font-style: normal; font-weight: 600;
  padding: 0 .4rem;
  border-radius: 999px; font-size: .9em; }
.strip-axis { position: relative; height: 1.4rem; display: block; overflow: hidden; }
.strip-axis i { position: absolute; display: block; }
.strip-axis .bound { top: 0; bottom: 0; width: 2px; margin-left: -1px; background: var(--ink); opacity: .75; }
.strip-axis .zero { top: 0; bottom: 0; width: 1px; background: var(--soft); }
.strip-axis .allowed { top: 0; bottom: 0; background: var(--good-bg); }
.strip-axis .bar { top: .6rem; height: .2rem; min-width: 2px; background: var(--mark); border-radius: 2px; }
.strip-axis .dot { top: .4rem; width: .6rem; height: .6rem; margin-left: -.3rem; border-radius: 50%;
  background: var(--mark); }
.strip-axis .good { --mark: var(--good); } .strip-axis .bad { --mark: var(--bad); }
.strip-axis .warn { --mark: var(--warn); }
.strip-axis .neutral { --mark: var(--neutral); }
.strip-axis .plain { --mark: var(--ink); }
.open-low::before, .open-high::after { content: ""; position: absolute; top: -.2rem;
  border: .3rem solid transparent; }
.open-low::before { left: 0; border-left: 0; border-right-color: var(--mark); }
.open-high::after { right: 0; border-right: 0; border-left-color: var(--mark); }
.ticks { overflow: visible; } .tick { position: absolute; transform: translateX(-50%); color: var(--soft);
  font-size: .8rem; white-space: nowrap; }
.filters { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: .5rem;
  align-items: center;
  padding: .6rem 0; margin-top: 1.2rem; background: var(--paper); border-bottom: 1px solid var(--line); }
input { font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--line);
  border-radius: 6px;
  padding: .25rem .6rem; max-width: 100%; } .filters input { flex: 1 1 14rem; }
button { font: inherit; cursor: pointer; border: 1px solid transparent; }
button[aria-pressed="true"] { border-color: currentColor; box-shadow: inset 0 0 0 1px currentColor; }
#tests table { font-size: .9rem; width: 100%; } #tests thead th { white-space: normal; }
.sortable thead th { cursor: pointer; } [aria-sort="ascending"]::after { content: " ▲"; }
[aria-sort="descending"]::after { content: " ▼"; }
details.part, details.test { border: 1px solid var(--line); border-radius: 8px; padding: 0 1rem;
  margin: .7rem 0; }
details.part > summary, details.test > summary { padding: .55rem 0; }
details.part[open], details.test[open] { padding-bottom: .8rem; }
summary h2, summary h3 { display: inline; border: 0; margin: 0; padding: 0; color: var(--ink);
  font-size: 1.02rem; }
summary h3 { font-size: .95rem; } summary small { margin-left: .7rem; }
.test, .card, h3 { scroll-margin-top: 4rem; }
.figures { display: grid; gap: 0 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); }
figure { margin: 1rem 0; max-width: 46rem; } figure svg { width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .86rem; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--soft); }
@media (max-width: 600px) {
  body { padding: 1rem .8rem 3rem; } dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; }
  td:first-child > code, tbody th > code { min-width: 9rem; }
  .strip-row { grid-template-columns: 1fr; gap: .1rem; }
  .strip-foot .strip-name, .strip-foot .strip-value { display: none; }
  .stacked, .stacked tbody, .stacked tr, .stacked td, .stacked th { display: block; min-width: 0; }
  .stacked thead { display: none; } .stacked tr { border-bottom: 2px solid var(--line); padding: .4rem 0; }
  .stacked td, .stacked tbody th { border: 0; padding: .1rem 0; overflow-wrap: anywhere; }
  .stacked td:empty { display: none; }
  .stacked td::before { content: attr(data-label) ": "; color: var(--soft); }
  .reasons table { min-width: 44rem; } .wide table { min-width: 64rem; }
  .judgement { margin-left: 0; margin-right: .8rem; } .nowrap { white-space: normal; } }
@media print { .filters { display: none; } body { max-width: none; font-size: 11px; } article { border: 0;
  padding: 0; }
  h2, h3, caption { break-after: avoid; } figure, tr { break-inside: avoid; }
  .pill { border: 1px solid currentColor; } a { color: inherit; } }
"""
