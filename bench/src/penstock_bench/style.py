"""The style sheet of the report page, for light and dark mode.

Rules: Each colour is defined once for light and once for dark mode, each readable on its ground (contrast of text at
least 7). Sizes follow the reader's font; only elements that scroll by themselves are wider than
the screen.
"""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --text: #1c2024; --muted: #50565e; --rule: #d4d9df;
  --warn: #8a2c0d; --focus: #0b5fa5; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --text: #e8eaed; --muted: #aab1ba; --rule: #3a4149;
  --warn: #ffb59b; --focus: #7cb8ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; margin: 0.5rem 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.5rem; border-bottom: 1px solid var(--rule); }
pre { overflow-x: auto; padding: 0.6rem; border: 1px solid var(--rule); border-radius: 4px; white-space: pre; }
figure { margin: 1rem 0; max-width: 40rem; }
figcaption, caption, header p { color: var(--muted); }
caption { text-align: left; padding: 0.3rem 0; }
img { width: 100%; height: auto; display: block; background: #ffffff; border-radius: 4px; }
.scroll { overflow-x: auto; margin: 0.5rem 0 1rem; }
.scroll:focus-visible, pre:focus-visible { outline: 2px solid var(--focus); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.7rem 0.25rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
.numbers td, .numbers th[scope=col] { text-align: right; white-space: nowrap; }
.numbers thead :first-child { text-align: left; }
th[scope=row] { font-weight: 500; min-width: 11rem; }
.name { display: block; color: var(--muted); font: 0.85rem/1.3 ui-monospace, monospace; }
.void { color: var(--warn); }
"""
