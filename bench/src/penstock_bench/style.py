"""The style sheet of the report page, for light and dark mode.

Rules: Each colour is defined once for light and once for dark mode, each readable on its ground (contrast of text at
least 7, of curves at least 3). Sizes follow the reader's font; only elements that scroll by themselves are wider than
the screen.
"""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --text: #1c2024; --muted: #50565e; --rule: #d4d9df;
  --warn: #8a2c0d; --s0: #0b5fa5; --s1: #c2410c; --s2: #15803d; --s3: #7e22ce; --s4: #b4235a; --s5: #0e7490;
  --s6: #7a4a06; --s7: #475569; --s8: #5b6b00; --s9: #111827; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --text: #e8eaed; --muted: #aab1ba; --rule: #3a4149;
  --warn: #ffb59b; --s0: #7cb8ff; --s1: #fdba74; --s2: #86efac; --s3: #d8b4fe; --s4: #f9a8c9; --s5: #67e8f9;
  --s6: #fde68a; --s7: #cbd5e1; --s8: #bef264; --s9: #ffffff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; margin: 0.5rem 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.5rem; border-bottom: 1px solid var(--rule); }
pre { overflow-x: auto; padding: 0.6rem; border: 1px solid var(--rule); border-radius: 4px; white-space: pre; }
figure { margin: 1rem 0; max-width: 40rem; }
figcaption, caption, header p { color: var(--muted); }
caption { text-align: left; padding: 0.3rem 0; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--text); font: 14px system-ui, sans-serif; }
svg .tick { font-size: 12px; fill: var(--muted); }
.grid { stroke: var(--rule); } .axis { stroke: var(--muted); }
.curve { fill: none; stroke-width: 2; stroke: var(--c); } .mark { fill: var(--c); }
.ring { fill: var(--ground); stroke: var(--c); stroke-width: 1.5; }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); } .s6 { --c: var(--s6); } .s7 { --c: var(--s7); }
.s8 { --c: var(--s8); } .s9 { --c: var(--s9); }
.scroll { overflow-x: auto; margin: 0.5rem 0 1rem; }
.scroll:focus-visible, pre:focus-visible { outline: 2px solid var(--s0); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.7rem 0.25rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
.numbers td, .numbers th[scope=col] { text-align: right; white-space: nowrap; }
.numbers thead :first-child { text-align: left; }
th[scope=row] { font-weight: 500; min-width: 11rem; }
.name { display: block; color: var(--muted); font: 0.85rem/1.3 ui-monospace, monospace; }
.void { color: var(--warn); }
"""
