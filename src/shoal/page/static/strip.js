// Strips: one cell per token, darker where the policy was less sure.
import { html, useEffect, useRef, useState } from "./htm-preact.js";
import { fixed } from "./format.js";

const MOST = 5; // nats; beyond it a cell is as dark as it gets

// As many means as there are pixels: cells that lie over each other would all look dark.
function squeezed(values, count) {
  return Array.from({ length: count }, (_, n) => {
    const part = values.slice(Math.floor((n * values.length) / count), Math.floor(((n + 1) * values.length) / count));
    return part.reduce((a, b) => a + b, 0) / (part.length || 1);
  });
}

function paint(canvas, values) {
  const width = canvas.clientWidth || 300;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(14 * scale);
  const ctx = canvas.getContext("2d");
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--strip").trim();
  const cells = values.length > canvas.width ? squeezed(values, canvas.width) : values;
  const step = canvas.width / Math.max(cells.length, 1);
  ctx.fillStyle = ink;
  cells.forEach((value, n) => {
    ctx.globalAlpha = 0.06 + 0.94 * Math.min(1, Math.max(0, value) / MOST);
    const x = Math.floor(n * step);
    ctx.fillRect(x, 0, Math.max(1, Math.floor((n + 1) * step) - x - (step > 6 * scale ? 1 : 0)), canvas.height);
  });
}

export function Strip({ name, values, pieces, sign = 1 }) {
  const canvas = useRef(null);
  const [at, setAt] = useState(null);
  useEffect(() => {
    const draw = () => canvas.current && paint(canvas.current, values);
    draw();
    const watch = new ResizeObserver(draw);
    watch.observe(canvas.current);
    addEventListener("themed", draw);
    return () => { watch.disconnect(); removeEventListener("themed", draw); };
  }, [values]);
  const hover = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const n = Math.floor(((event.clientX - box.left) / box.width) * values.length);
    setAt(n >= 0 && n < values.length ? n : null);
  };
  const mean = values.reduce((a, b) => a + b, 0) / (values.length || 1);
  const peak = values.indexOf(Math.max(...values));
  const text = `${name} of ${values.length} tokens: mean ${fixed(sign * mean, 2)}, least sure at token ${peak + 1} with ${fixed(sign * values[peak], 2)}`;
  return html`<div class="strip"><span class="strip-name">${name}</span><canvas ref=${canvas} role="img" aria-label=${text} onMouseMove=${hover} onMouseLeave=${() => setAt(null)}></canvas>
    <span class="strip-value">${at === null ? fixed(sign * mean, 2) : html`<bdi>${JSON.stringify(pieces[at])}</bdi> ${fixed(sign * values[at], 2)}`}</span></div>`;
}

export function Tokens({ sample, mark }) {
  const [open, setOpen] = useState(false);
  return html`<details onToggle=${(event) => setOpen(event.target.open)} open=${mark !== undefined}><summary>Token by token</summary>${open || mark !== undefined ? html`<ol class="tokens">${sample.pieces.map((piece, n) => {
    const doubt = Math.min(9, Math.max(0, Math.floor(-2 * sample.logprobs[n])));
    return html`<li class=${sample.ids[n] === mark ? "marked" : ""} style=${{ "--doubt": `${doubt && 2 + 4 * doubt}%` }} title="token ${sample.ids[n]}, log-prob ${fixed(sample.logprobs[n], 2)}"><bdi>${piece.replaceAll("\n", "↵") || "∅"}</bdi><small>${fixed(sample.logprobs[n], 2)}</small></li>`;
  })}</ol>${sample.tokens > sample.pieces.length ? html`<p class="empty small">${sample.tokens - sample.pieces.length} more tokens are not shown.</p>` : null}` : null}</details>`;
}
