"""The style sheet of ``report.html``: no web fonts, no scripts, light, dark and paper."""

from __future__ import annotations

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
pre.error { border-left: 4px solid var(--bad); }
pre.evidence { padding: .3rem .5rem; margin: .3rem 0 0; color: var(--soft); font-size: .78em; }
.scroll { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; min-width: min(100%, 36rem); font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem .35rem 0;
  border-bottom: 1px solid var(--line); }
tbody th { font-weight: 400; }
.nowrap { white-space: nowrap; overflow-wrap: normal; }
.wide { font-size: .88em; }
.breaks { display: inline-block; min-width: 9rem; overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: 600; white-space: nowrap; }
dl { display: grid; grid-template-columns: minmax(9rem, 15rem) 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
ul { margin: .3rem 0; padding-left: 1.2rem; }
.pill { display: inline-block; border-radius: 999px; padding: .05rem .6rem;
  font-size: .82rem; font-weight: 600; white-space: nowrap; }
.good { color: var(--good); background: var(--good-bg); }
.bad { color: var(--bad); background: var(--bad-bg); }
.warn { color: var(--warn); background: var(--warn-bg); }
.neutral { color: var(--neutral); background: var(--neutral-bg); }
.judgement { margin-left: 1rem; color: var(--soft); white-space: nowrap; }
.verdicts { line-height: 2; }
article { border: 1px solid var(--line); border-radius: 8px; padding: .2rem 1.1rem 1rem; margin: 1rem 0; }
figure { margin: 1rem 0; max-width: 46rem; } figure svg { width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .86rem; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--soft); }
@media print { body { max-width: none; font-size: 11px; } article { border: 0; padding: 0; }
  h2, h3, caption { break-after: avoid; } figure, tr { break-inside: avoid; }
  .pill { border: 1px solid currentColor; } a { color: inherit; } }
"""
