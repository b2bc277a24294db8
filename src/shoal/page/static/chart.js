// A chart of uPlot with a legend in HTML, a readout under the cursor, and its numbers as a table for those who cannot see it.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./htm-preact.js";
import { figure, int } from "./format.js";
import { Table } from "./parts.js";

const TABLE_ROWS = 25;
let loading = null;

function library() {
  loading ||= new Promise((resolve, reject) => {
    const sheet = document.createElement("link");
    sheet.rel = "stylesheet";
    sheet.href = "/static/uPlot.min.css";
    const script = document.createElement("script");
    script.src = "/static/uPlot.iife.min.js";
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => reject(new Error("the chart library did not load"));
    document.head.append(sheet, script);
  });
  return loading;
}
library();

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// `lines`: [{ label, y, low?, high?, color: "--c1", points?, intervals? }], all over the same x.
function options(uPlot, lines, width, height, { format, onCursor }) {
  const series = [{}];
  const bands = [];
  const pale = (name) => `color-mix(in srgb, ${color(name)} 18%, transparent)`;
  for (const line of lines) {
    if (line.low) {
      const at = series.length;
      series.push({ show: true, stroke: "transparent", points: { show: false } }, { show: true, stroke: "transparent", points: { show: false } });
      bands.push({ series: [at + 1, at], fill: pale(line.color) });
    }
    series.push({
      stroke: color(line.color), width: line.points ? 1.2 : 1.8, dash: line.points ? [3, 4] : undefined, spanGaps: true,
      points: line.points ? { show: true, size: line.y.filter((v) => v !== null).length > 40 ? 3 : 7, fill: color("--surface"), stroke: color(line.color), width: 2 } : { show: lines.sparse, size: 5, fill: color(line.color) },
    });
  }
  const axis = { stroke: color("--soft"), grid: { stroke: color("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return {
    width, height, series, bands, legend: { show: false }, padding: [8, 18, 0, 0],
    cursor: { sync: { key: "run" }, points: { size: 6 }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { range: (u, low, high) => reach(low, high, lines) } },
    axes: [{ ...axis, size: 26, values: (u, ticks) => ticks.map((v) => (Number.isInteger(v) ? int(v) : "")) }, { ...axis, size: 52, values: (u, ticks, at, space, step) => ticks.map((v) => (v === null ? "" : format(v, digits(v, step)))) }],
    hooks: {
      setCursor: [(u) => onCursor(u.cursor.idx)],
      draw: [(u) => lines.forEach((line) => line.intervals && intervals(u, line))],
    },
  };
}

// Significant digits with which a tick of an axis differs from the one beside it.
const digits = (value, step) => Math.max(3, 2 + Math.floor(Math.log10(Math.abs(value) / step || 1)));

// From zero where that is near, with room above, and wide enough for every interval.
function reach(low, high, lines) {
  for (const line of lines) for (const [, from, to] of line.intervals || []) {
    if (from !== null && to !== null) [low, high] = [Math.min(low ?? from, from), Math.max(high ?? to, to)];
  }
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low >= 0 ? Math.max(0, low - room) * (low < (high - low) * 2 ? 0 : 1) : low - room, high + room];
}

function intervals(u, line) {
  const { ctx } = u;
  ctx.save();
  ctx.strokeStyle = color(line.color);
  const many = line.intervals.length > 40;
  ctx.lineWidth = (many ? 1 : 1.5) * devicePixelRatio;
  ctx.globalAlpha = many ? 0.45 : 1;
  const cap = many ? 0 : 4 * devicePixelRatio;
  line.intervals.forEach(([x, low, high]) => {
    if (low === null || high === null) return;
    const at = u.valToPos(x, "x", true);
    const [top, bottom] = [u.valToPos(high, "y", true), u.valToPos(low, "y", true)];
    ctx.beginPath();
    ctx.moveTo(at, top); ctx.lineTo(at, bottom);
    ctx.moveTo(at - cap, top); ctx.lineTo(at + cap, top);
    ctx.moveTo(at - cap, bottom); ctx.lineTo(at + cap, bottom);
    ctx.stroke();
  });
  ctx.restore();
}

function aligned(x, lines) {
  const data = [x];
  for (const line of lines) {
    if (line.low) data.push(line.low, line.high);
    data.push(line.y);
  }
  return data;
}

const last = (values) => values.findLast((value) => value !== null && value !== undefined);

export function Chart({ title, unit, x, lines, height = 170, format = figure, note }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [at, setAt] = useState(null);
  const [themed, setThemed] = useState(0);
  const [open, setOpen] = useState(false);
  const shown = lines.filter((line) => line.y && line.y.some((value) => value !== null));
  shown.sparse = x.length < 3;
  const shape = shown.map((line) => `${line.label}${Boolean(line.low)}`).join() + shown.sparse;
  const latest = useRef(null);
  latest.current = shown;
  useEffect(() => {
    const again = () => setThemed((n) => n + 1);
    addEventListener("themed", again);
    return () => removeEventListener("themed", again);
  }, []);
  useEffect(() => {
    if (!shown.length) return undefined;
    let dropped = false;
    let watch = null;
    library().then((uPlot) => {
      if (dropped || !box.current) return;
      const live = shown.map((line, n) => ({ ...line, get intervals() { return latest.current[n]?.intervals; } }));
      live.sparse = shown.sparse;
      const width = Math.max(200, box.current.clientWidth);
      plot.current = new uPlot(options(uPlot, live, width, height, { format, onCursor: (idx) => setAt(idx ?? null) }), aligned(x, latest.current), box.current);
      watch = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(200, box.current.clientWidth), height }));
      watch.observe(box.current);
    });
    return () => {
      dropped = true;
      watch?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, themed, height]);
  useLayoutEffect(() => {
    plot.current?.setData(aligned(x, latest.current));
  }, [x, lines]);
  const where = at !== null && at < x.length ? at : null;
  const value = (line) => (where === null ? last(line.y) : line.y[where]);
  const summary = shown.map((line) => `${line.label || title}: ${format(line.y.find((v) => v !== null))} at first, ${format(last(line.y))} at last`).join("; ");
  return html`<figure class="chart" aria-label=${title}>
    <figcaption><span class="chart-title">${title}</span>${unit ? html`<span class="unit"> ${unit}</span>` : null}
      <span class="legend">${shown.map((line) => html`<span class="key"><span class="swatch ${line.color.slice(2)}" aria-hidden="true"></span>${line.label ? html`${line.label} ` : null}<b>${format(value(line) ?? null)}</b></span>`)}
      ${where !== null ? html`<span class="key">at step <b>${int(x[where])}</b></span>` : null}</span></figcaption>
    ${shown.length ? html`<div class="plot" ref=${box} role="img" aria-label="${title} over ${int(x.length)} points. ${summary}" style=${{ height: `${height}px` }}></div>
      ${note ? html`<p class="chart-note">${note}</p>` : null}
      <details onToggle=${(event) => setOpen(event.target.open)}><summary>Numbers<span class="hidden"> of ${title}</span></summary>${open ? html`<${Numbers} title=${title} x=${x} lines=${shown} format=${format}/>` : null}</details>`
      : html`<p class="empty small">Nothing measured yet.</p>`}</figure>`;
}

function Numbers({ title, x, lines, format }) {
  const every = Math.max(1, Math.ceil(x.length / TABLE_ROWS));
  const rows = x.map((_, n) => n).filter((n) => n % every === 0 || n === x.length - 1);
  const columns = [{ head: "step", cell: (n) => int(x[n]) }, ...lines.map((line) => ({ head: line.label || title, right: true, cell: (n) => format(line.y[n] ?? null) }))];
  return html`<${Table} label="${title}, ${rows.length} of ${x.length} points" columns=${columns} rows=${rows}/>`;
}
