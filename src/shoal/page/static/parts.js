// Parts that pages share. Foreign text only ever becomes a text node: nothing here writes HTML.
import { html, useEffect, useRef, useState } from "./htm-preact.js";
import { compact, int, plural, short } from "./format.js";

const TONES = {
  running: "good", healthy: "good", working: "good", accepted: "good", active: "good", verified: "good",
  finished: "info", done: "info", joined: "info", starting: "info", audited: "info",
  waiting: "warn", silent: "warn", suspended: "warn", stopped: "warn", gone: "mute", unstarted: "mute", unjudged: "mute",
  failed: "bad", dead: "bad", banned: "bad", refused: "bad", unreadable: "bad",
};

export const Badge = ({ word, tone }) => html`<span class="badge ${tone || TONES[word] || "mute"}">${word}</span>`;

export const Tile = ({ label, value, unit, note }) => html`
  <div class="tile"><dt>${label}</dt><dd><span class="value">${value}</span>${unit ? html` <span class="unit">${unit}</span>` : null}
  ${note ? html`<span class="note">${note}</span>` : null}</dd></div>`;

export const Tiles = ({ children, label }) => html`<dl class="tiles" aria-label=${label}>${children}</dl>`;

export const Section = ({ title, id, aside, children }) => html`
  <section class="card" aria-labelledby=${id}><header class="card-head"><h2 id=${id}>${title}</h2>${aside || null}</header>${children}</section>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export function Problem({ error, data }) {
  if (error && !data) return html`<p class="empty" role="status">Nothing to show: ${error}.</p>`;
  return null;
}

export const Loading = () => html`<p class="empty loading" role="status">Reading the run's files …</p>`;

export const Address = ({ address, name }) => html`
  <a class="address" href="/node/${address}" title=${address}>${name ? html`<bdi class="name">${name}</bdi> ` : null}<code>${short(address)}</code></a>`;

export const Scroll = ({ label, children }) => html`<div class="scroll" role="region" aria-label=${label} tabindex="0">${children}</div>`;

// `columns`: [{ head, cell(row), right, wide }]. The first column is the row's heading.
export function Table({ label, columns, rows, keyed }) {
  return html`<${Scroll} label=${label}><table><caption class="hidden">${label}</caption>
    <thead><tr>${columns.map((c) => html`<th scope="col" class=${c.right ? "right" : ""}>${c.head}</th>`)}</tr></thead>
    <tbody>${rows.map((row, n) => html`<tr key=${keyed ? keyed(row) : n}>${columns.map((c, at) => {
      const kind = `${c.right ? "right" : ""} ${c.wide ? "wide" : ""}`;
      return at === 0 ? html`<th scope="row" class=${kind}>${c.cell(row)}</th>` : html`<td class=${kind}>${c.cell(row)}</td>`;
    })}</tr>`)}</tbody></table></${Scroll}>`;
}

export function Pager({ page, per_page, found, set, what }) {
  const pages = Math.max(1, Math.ceil(found / per_page));
  if (pages === 1) return html`<p class="pager"><span>${plural(found, what.slice(0, -1))}</span></p>`;
  const first = page * per_page + 1;
  return html`<nav class="pager" aria-label="pages of ${what}">
    <button disabled=${page === 0} onClick=${() => set({ page: String(page - 1) })}>← Previous</button>
    <span>${int(first)}–${int(Math.min(found, first + per_page - 1))} of ${int(found)} ${what}</span>
    <button disabled=${page >= pages - 1} onClick=${() => set({ page: String(page + 1) })}>Next →</button></nav>`;
}

export function Copy({ text, label }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      setTimeout(() => setDone(false), 2000);
    } catch { /* no permission: the text can be selected */ }
  };
  return html`<div class="copy"><code tabindex="0" aria-label=${label}>${text}</code><button onClick=${copy}>${done ? "Copied" : "Copy"}</button>
    <span class="hidden" role="status">${done ? "copied" : ""}</span></div>`;
}

export const Field = ({ label, children }) => html`<label class="field"><span>${label}</span>${children}</label>`;

export const Select = ({ label, value, options, onChange }) => html`<${Field} label=${label}>
  <select onChange=${(e) => onChange(e.target.value)}>${options.map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`)}</select></${Field}>`;

// A text box that tells of its value when typing pauses.
export function Search({ label, value, placeholder, onChange }) {
  const timer = useRef(0);
  const type = (event) => {
    const text = event.target.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(text.trim()), 300);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  return html`<${Field} label=${label}><input type="search" value=${value} placeholder=${placeholder} onInput=${type} autocomplete="off" spellcheck="false"/></${Field}>`;
}

// Bars that can be chosen: each is a button, and says its range and count.
export function Histogram({ bins, chosen, onChoose, name, format }) {
  if (!bins.length) return html`<${Empty}>No value yet.</${Empty}>`;
  const most = Math.max(...bins.map((bin) => bin[2]));
  const range = ([low, high]) => (low === high ? format(low) : `${format(low)} to ${format(high)}`);
  return html`<div class="histogram" role="group" aria-label="histogram of ${name}">
    ${bins.map((bin) => {
      const on = chosen && chosen[0] === bin[0] && chosen[1] === bin[1];
      return html`<button key=${bin[0]} class="bar ${on ? "on" : ""}" aria-pressed=${on ? "true" : "false"} title="${name} ${range(bin)}: ${int(bin[2])}"
        aria-label="${name} ${range(bin)}: ${int(bin[2])} samples" onClick=${() => onChoose(on ? null : bin)}>
        <svg viewBox="0 0 10 100" preserveAspectRatio="none" aria-hidden="true"><rect x="1" width="8" y=${100 - (97 * bin[2]) / most} height=${(97 * bin[2]) / most}/></svg>${bins.length <= 12 ? html`<span aria-hidden="true">${range(bin)}</span>` : null}</button>`;
    })}</div><div class="histogram-ends" aria-hidden="true">${bins.length > 12 ? html`<span>${format(bins[0][0])}</span>` : null}<span>highest bar: ${compact(most)} samples</span>${bins.length > 12 ? html`<span>${format(bins[bins.length - 1][1])}</span>` : null}</div>`;
}
